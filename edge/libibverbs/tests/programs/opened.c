/* A target of an XRC domain that is opened a second time: what one handle does, the other sees; the target ends with the last of
 * them, and hears of events as often as it is open. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)
#define FAILS(call, why) do { errno = 0; MUST(!(call) && errno == (why)); } while (0)

static char bytes[64];
static union ibv_gid gid;

static struct ibv_context *device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(*list);
	MUST(context);
	ibv_free_device_list(list);
	return context;
}

static struct ibv_xrcd *domain(struct ibv_context *context, int fd)
{
	struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = O_CREAT};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &attr);
	MUST(xrcd);
	return xrcd;
}

static struct ibv_qp *opened(struct ibv_xrcd *xrcd, uint32_t number, enum ibv_qp_type type, void *name)
{
	struct ibv_qp_open_attr attr = {.qp_num = number, .xrcd = xrcd, .qp_type = type, .qp_context = name,
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT};
	return ibv_open_qp(xrcd->context, &attr);
}

static void ready(struct ibv_qp *qp, uint32_t peer, int sends)
{
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 64}}};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	if (!sends)
		return;
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 17, .retry_cnt = 7, .rnr_retry = 7};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

static int state(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	MUST(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && init.qp_type == IBV_QPT_XRC_RECV);
	return attr.qp_state;
}

static void message(struct ibv_qp *from, struct ibv_srq *to, struct ibv_mr *mr, struct ibv_cq *cq, uint32_t qp_num)
{
	struct ibv_sge half = {(uintptr_t)bytes, 32, mr->lkey}, rest = {(uintptr_t)bytes + 32, 32, mr->lkey};
	struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &rest, .num_sge = 1}, *no;
	struct ibv_send_wr send = {.wr_id = 2, .sg_list = &half, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc;
	MUST(!ibv_get_srq_num(to, &send.qp_type.xrc.remote_srqn));
	memset(bytes, 0, 64);
	strcpy(bytes, "through a target");
	MUST(!ibv_post_srq_recv(to, &receive, &no) && !ibv_post_send(from, &send, &bad));
	for (int left = 2; left > 0;) {
		if (ibv_poll_cq(cq, 1, &wc) == 1) {
			MUST(wc.status == IBV_WC_SUCCESS && (wc.wr_id == 2 || wc.qp_num == qp_num));
			left--;
		}
	}
	MUST(!strcmp(bytes + 32, bytes));
}

int main(void)
{
	alarm(30); /* Whatever hangs. */
	FILE *file = tmpfile();
	struct ibv_context *one = device(), *two = device();
	struct ibv_xrcd *xrcd = domain(one, fileno(file)), *same = domain(two, fileno(file)), *other = domain(two, -1);
	struct ibv_pd *pd = ibv_alloc_pd(one);
	struct ibv_cq *cq = ibv_create_cq(one, 16, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
	MUST(pd && cq && mr && !ibv_query_gid(one, 1, 1, &gid));
	struct ibv_srq_init_attr_ex shared = {.attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .xrcd = xrcd, .cq = cq,
		.pd = pd, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD};
	struct ibv_srq *srq = ibv_create_srq_ex(one, &shared);
	struct ibv_qp_init_attr_ex target = {.qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp_init_attr_ex initiator = {.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .cap = {.max_send_wr = 4, .max_send_sge = 1},
		.pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD};
	struct ibv_qp *made = ibv_create_qp_ex(one, &target), *sender = ibv_create_qp_ex(one, &initiator);
	MUST(srq && made && sender);
	uint32_t number = made->qp_num;

	FAILS(opened(same, number ^ 1, IBV_QPT_XRC_RECV, NULL), EINVAL);
	FAILS(opened(same, sender->qp_num, IBV_QPT_XRC_RECV, NULL), EINVAL);
	FAILS(opened(same, number, IBV_QPT_RC, NULL), EINVAL);
	FAILS(opened(other, number, IBV_QPT_XRC_RECV, NULL), EINVAL);
	struct ibv_qp *again = opened(same, number, IBV_QPT_XRC_RECV, &gid);
	MUST(again && again != made && again->qp_num == number && again->qp_context == &gid && again->context == two);
	MUST(ibv_close_xrcd(same) == EBUSY);

	ready(again, sender->qp_num, 0);
	MUST(state(made) == IBV_QPS_RTR);
	ready(sender, number, 1);
	message(sender, srq, mr, cq, number);
	struct ibv_context *contexts[] = {one, two};
	struct ibv_qp *handles[] = {made, again};
	for (int i = 0; i < 2; i++) {
		struct ibv_async_event event;
		MUST(!ibv_get_async_event(contexts[i], &event));
		MUST(event.event_type == IBV_EVENT_COMM_EST && event.element.qp == handles[i]);
		ibv_ack_async_event(&event);
	}

	MUST(!ibv_destroy_qp(made));
	MUST(state(again) == IBV_QPS_RTR);
	message(sender, srq, mr, cq, number);
	MUST(!ibv_destroy_qp(again));
	FAILS(opened(same, number, IBV_QPT_XRC_RECV, NULL), EINVAL);
	MUST(!ibv_close_xrcd(same) && !ibv_close_xrcd(other));
	MUST(!ibv_destroy_qp(sender) && !ibv_destroy_srq(srq) && !ibv_close_xrcd(xrcd));
	return 0;
}
