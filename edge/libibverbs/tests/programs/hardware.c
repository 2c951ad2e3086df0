/* Stands in for the libibverbs of a machine with an adapter: one device, whose objects it checks when they come back. */
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
	struct ibv_device device;
	char behind[512];
} adapter = {.device = {.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "real0", .dev_name = "uverbs9"}};

static struct ibv_device *list[] = {&adapter.device, NULL};
static char private[4096];
static struct verbs_context whole;
static struct ibv_pd domain;
static struct ibv_mr region;
static struct ibv_cq queue;
static struct ibv_qp pair;
static struct ibv_srq shared;
static struct ibv_ah address;
static struct ibv_comp_channel channel;
static struct ibv_wq work;

static void is(const void *object, const void *own, const char *what)
{
	if (object != own) {
		fprintf(stderr, "another object came to %s\n", what);
		abort();
	}
	printf("%s\n", what);
}

struct ibv_device **ibv_get_device_list(int *count)
{
	if (count)
		*count = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **given) { is(given, list, "free_device_list"); }

const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	is(device, &adapter.device, "get_device_guid");
	return 0x1234;
}

static int post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	is(qp, &pair, "post_send");
	return 0;
}

static int poll(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	is(cq, &queue, "poll_cq");
	wc->wr_id = 7;
	return 1;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	is(device, &adapter.device, "open_device");
	whole.sz = sizeof whole;
	whole.priv = (void *)private;
	whole.context.device = device;
	whole.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	whole.context.ops.post_send = post;
	whole.context.ops.poll_cq = poll;
	return &whole.context;
}

int ibv_close_device(struct ibv_context *context) { is(context, &whole.context, "close_device"); return 0; }

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	is(context, &whole.context, "query_device");
	memset(attr, 0, sizeof *attr);
	attr->vendor_part_id = 4242;
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	is(context, &whole.context, "alloc_pd");
	domain.context = context;
	return &domain;
}

int ibv_dealloc_pd(struct ibv_pd *pd) { is(pd, &domain, "dealloc_pd"); return 0; }

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	is(pd, &domain, "reg_mr");
	region = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length, .lkey = 99};
	return &region;
}

int ibv_dereg_mr(struct ibv_mr *mr) { is(mr, &region, "dereg_mr"); return 0; }

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	is(context, &whole.context, "create_cq");
	queue.context = context;
	return &queue;
}

int ibv_destroy_cq(struct ibv_cq *cq) { is(cq, &queue, "destroy_cq"); return 0; }

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	is(pd, &domain, "create_qp");
	pair.context = pd->context;
	return &pair;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) { is(qp, &pair, "modify_qp"); return 0; }

int ibv_destroy_qp(struct ibv_qp *qp) { is(qp, &pair, "destroy_qp"); return 0; }

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	is(qp, &pair, "query_qp");
	return 0;
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) { is(qp, &pair, "attach_mcast"); return 0; }

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) { is(qp, &pair, "detach_mcast"); return 0; }

int ibv_resize_cq(struct ibv_cq *cq, int cqe) { is(cq, &queue, "resize_cq"); return 0; }

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	is(mr, &region, "rereg_mr");
	return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	is(context, &whole.context, "query_port");
	return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	is(context, &whole.context, "query_gid");
	return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	is(context, &whole.context, "query_pkey");
	return 0;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	is(pd, &domain, "create_srq");
	shared.context = pd->context;
	return &shared;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask) { is(srq, &shared, "modify_srq"); return 0; }

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr) { is(srq, &shared, "query_srq"); return 0; }

int ibv_destroy_srq(struct ibv_srq *srq) { is(srq, &shared, "destroy_srq"); return 0; }

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	is(pd, &domain, "create_ah");
	address.context = pd->context;
	return &address;
}

int ibv_destroy_ah(struct ibv_ah *ah) { is(ah, &address, "destroy_ah"); return 0; }

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	is(context, &whole.context, "create_comp_channel");
	channel.context = context;
	return &channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *given) { is(given, &channel, "destroy_comp_channel"); return 0; }

int ibv_get_cq_event(struct ibv_comp_channel *given, struct ibv_cq **cq, void **cq_context)
{
	is(given, &channel, "get_cq_event");
	*cq = &queue;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count) { is(cq, &queue, "ack_cq_events"); }

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	is(context, &whole.context, "get_async_event");
	static int count;
	event->event_type = count++ ? IBV_EVENT_WQ_FATAL : IBV_EVENT_QP_FATAL;
	if (event->event_type == IBV_EVENT_WQ_FATAL)
		event->element.wq = &work;
	else
		event->element.qp = &pair;
	return 0;
}

/* Of an object of which the library in front knows nothing: it counts all others in the object itself. */
void ibv_ack_async_event(struct ibv_async_event *event) { is(event->element.wq, &work, "ack_async_event"); }
