/* Uses a device of hardware and a software device side by side: all calls for the first reach its library. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

/* The other calls that the library in front passes on, or answers for a software device. */
static void use_the_rest(struct ibv_pd *pd, struct ibv_mr *mr, struct ibv_cq *cq, struct ibv_qp *qp)
{
	struct ibv_context *context = pd->context;
	struct ibv_port_attr port;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_srq_init_attr srq_init = {.attr = {4, 1, 0}};
	struct ibv_ah_attr ah_attr = {.port_num = 1};
	struct ibv_async_event event;
	union ibv_gid gid = {{0}};
	struct ibv_cq *notified;
	void *own;
	__be16 pkey;
	MUST(!ibv_query_port(context, 1, &port) && !ibv_query_gid(context, 1, 0, &gid) && !ibv_query_pkey(context, 1, 0, &pkey));
	MUST(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && !ibv_resize_cq(cq, 8));
	MUST(!ibv_attach_mcast(qp, &gid, 0) && !ibv_detach_mcast(qp, &gid, 0));
	MUST(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0));
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	MUST(srq && !ibv_modify_srq(srq, &srq_init.attr, IBV_SRQ_LIMIT) && !ibv_query_srq(srq, &srq_init.attr));
	struct ibv_ah *ah = ibv_create_ah(pd, &ah_attr);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	MUST(ah && channel && !ibv_get_cq_event(channel, &notified, &own) && notified == cq);
	ibv_ack_cq_events(cq, 1);
	MUST(!ibv_get_async_event(context, &event) && event.element.qp == qp);
	ibv_ack_async_event(&event);
	MUST(qp->events_completed == 1);
	MUST(!ibv_get_async_event(context, &event) && event.event_type == IBV_EVENT_WQ_FATAL);
	ibv_ack_async_event(&event);
	MUST(!ibv_destroy_comp_channel(channel) && !ibv_destroy_ah(ah) && !ibv_destroy_srq(srq));
}

static void use(struct ibv_device *device, int is_real)
{
	char buffer[64];
	struct ibv_device_attr attr;
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_RESET};
	struct ibv_send_wr wr = {.wr_id = 1}, *bad;
	struct ibv_wc wc;
	MUST(ibv_get_device_guid(device) != 0);
	struct ibv_context *context = ibv_open_device(device);
	MUST(context && !ibv_query_device(context, &attr));
	MUST((attr.vendor_part_id == 4242) == is_real);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE) : NULL;
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = pd && cq ? ibv_create_qp(pd, &init) : NULL;
	MUST(mr && qp && !ibv_modify_qp(qp, &to, IBV_QP_STATE));
	if (is_real) {
		MUST(!ibv_post_send(qp, &wr, &bad));
		MUST(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 7);
		use_the_rest(pd, mr, cq, qp);
	} else {
		MUST(ibv_post_send(qp, &wr, &bad) == EINVAL);
		MUST(ibv_poll_cq(cq, 1, &wc) == 0);
	}
	MUST(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
}

int main(void)
{
	int count, real = 0, soft = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	MUST(list);
	for (int at = 0; at < count; at++) {
		const char *name = ibv_get_device_name(list[at]);
		printf("device %s\n", name);
		if (!strcmp(name, "real0")) {
			use(list[at], 1);
			real++;
		} else if (!strcmp(name, "soft_lo")) {
			use(list[at], 0);
			soft++;
		}
	}
	ibv_free_device_list(list);
	MUST(real == 1 && soft == 1);
	return 0;
}
