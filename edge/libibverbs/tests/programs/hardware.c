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
