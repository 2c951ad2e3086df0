/* What a child that was made by fork does with the objects of its parent is refused, and the parent notices nothing: its queue
 * pairs go on. The child has a device of its own. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%s, %d: %s: %s\n", who, __LINE__, #what, strerror(errno)); _exit(1); } } while (0)
#define CODE(call) MUST((errno = (call)) == ENODEV)
#define NONE(call) do { errno = 0; MUST(!(call) && errno == ENODEV); } while (0)
#define MINUS(call) do { errno = 0; MUST((call) == -1 && errno == ENODEV); } while (0)

static const char *who = "parent";
static char bytes[2][64];
static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_cq_ex *ex;
static struct ibv_srq *srq;
static struct ibv_ah *ah;
static struct ibv_mw *mw;
static struct ibv_qp *qps[2];
static union ibv_gid gid;

static struct ibv_context *device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *opened = ibv_open_device(*list);
	MUST(opened);
	ibv_free_device_list(list);
	return opened;
}

static struct ibv_qp *made(struct ibv_pd *of, struct ibv_cq *queue)
{
	struct ibv_qp_init_attr init = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64}};
	struct ibv_qp *qp = ibv_create_qp(of, &init);
	MUST(qp);
	return qp;
}

static void ready(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 64}}};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 17, .retry_cnt = 7, .rnr_retry = 7};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

/* A message by SEND and one by WRITE. */
static void messages(const char *text)
{
	struct ibv_sge from = {(uintptr_t)bytes[0], 64, mr->lkey}, to = {(uintptr_t)bytes[1], 64, mr->lkey};
	struct ibv_recv_wr receive = {.wr_id = 2, .sg_list = &to, .num_sge = 1}, *no;
	struct ibv_send_wr send = {.wr_id = 1, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	struct ibv_wc wc;
	for (int round = 0; round < 2; round++) {
		memset(bytes, 0, sizeof bytes);
		strcpy(bytes[0], text);
		if (round) {
			send.opcode = IBV_WR_RDMA_WRITE;
			send.wr.rdma.remote_addr = (uintptr_t)bytes[1];
			send.wr.rdma.rkey = mr->rkey;
		} else {
			MUST(!ibv_post_recv(qps[1], &receive, &no));
		}
		MUST(!ibv_post_send(qps[0], &send, &bad));
		for (int left = round ? 1 : 2; left > 0;) {
			if (ibv_poll_cq(cq, 1, &wc) == 1) {
				MUST(wc.status == IBV_WC_SUCCESS);
				left--;
			}
		}
		MUST(!strcmp(bytes[1], text));
	}
}

static void child(void)
{
	who = "child";
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_qp_init_attr init;
	struct ibv_srq_attr limit = {0};
	struct ibv_sge piece = {(uintptr_t)bytes[0], 64, mr->lkey};
	struct ibv_recv_wr receive = {.sg_list = &piece, .num_sge = 1}, *no;
	struct ibv_send_wr send = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE}, *bad;
	struct ibv_poll_cq_attr none = {0};
	struct ibv_wc wc;
	CODE(ibv_modify_qp(qps[0], &attr, IBV_QP_STATE));
	CODE(ibv_query_qp(qps[0], &attr, IBV_QP_STATE, &init));
	CODE(ibv_post_send(qps[0], &send, &bad));
	MUST(bad == &send);
	CODE(ibv_post_recv(qps[1], &receive, &no));
	CODE(ibv_post_srq_recv(srq, &receive, &no));
	MUST(ibv_poll_cq(cq, 1, &wc) < 0);
	CODE(ibv_start_poll(ex, &none));
	CODE(ibv_req_notify_cq(cq, 0));
	CODE(ibv_resize_cq(cq, 32));
	CODE(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	struct ibv_qp_ex *wr = ibv_qp_to_qp_ex(qps[0]);
	MUST(!wr);
	NONE(ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE));
	NONE(ibv_create_cq(context, 4, NULL, NULL, 0));
	NONE(ibv_alloc_pd(context));
	NONE(ibv_create_comp_channel(context));
	MINUS(ibv_get_cq_event(channel, &(struct ibv_cq *){NULL}, &(void *){NULL}));
	/* What the device is does not change, and its memory is whose process has asked for it. */
	MUST(!ibv_query_device_ex(context, NULL, &(struct ibv_device_attr_ex){0}) && !ibv_query_device(context, &(struct ibv_device_attr){0}));
	struct ibv_dm *dm = ibv_alloc_dm(context, &(struct ibv_alloc_dm_attr){.length = 64});
	char copy[16];
	MUST(dm && !ibv_memcpy_to_dm(dm, 32, "what is written", 16) && !ibv_memcpy_from_dm(copy, dm, 32, 16));
	MUST(!strcmp(copy, "what is written") && ibv_memcpy_to_dm(dm, 56, copy, 16) == EINVAL);
	NONE(ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED));
	MUST(!ibv_free_dm(dm));
	CODE(ibv_destroy_qp(qps[0]));
	CODE(ibv_destroy_qp(qps[1]));
	CODE(ibv_destroy_srq(srq));
	CODE(ibv_destroy_ah(ah));
	CODE(ibv_dealloc_mw(mw));
	CODE(ibv_dereg_mr(mr));
	CODE(ibv_destroy_cq(cq));
	CODE(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)));
	CODE(ibv_destroy_comp_channel(channel));
	CODE(ibv_dealloc_pd(pd));
	MUST(!ibv_close_device(context));

	struct ibv_context *own = device();
	struct ibv_pd *domain = ibv_alloc_pd(own);
	struct ibv_cq *queue = ibv_create_cq(own, 4, NULL, NULL, 0);
	MUST(domain && queue);
	struct ibv_qp *pair = made(domain, queue);
	ready(pair, pair->qp_num);
	MUST(!ibv_post_send(pair, &send, &bad));
	MUST(!ibv_destroy_qp(pair) && !ibv_destroy_cq(queue) && !ibv_dealloc_pd(domain) && !ibv_close_device(own));
	_exit(0);
}

int main(void)
{
	int status;
	alarm(60); /* Whatever hangs. */
	context = device();
	MUST(!ibv_query_gid(context, 1, 1, &gid));
	MUST((pd = ibv_alloc_pd(context)) && (channel = ibv_create_comp_channel(context)));
	MUST((mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	MUST((cq = ibv_create_cq(context, 16, NULL, channel, 0)));
	MUST((ex = ibv_create_cq_ex(context, &(struct ibv_cq_init_attr_ex){.cqe = 4})));
	MUST((srq = ibv_create_srq(pd, &(struct ibv_srq_init_attr){.attr = {.max_wr = 4, .max_sge = 1}})));
	MUST((mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1)));
	struct ibv_ah_attr way = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 64}};
	MUST((ah = ibv_create_ah(pd, &way)));
	qps[0] = made(pd, cq);
	qps[1] = made(pd, cq);
	ready(qps[0], qps[1]->qp_num);
	ready(qps[1], qps[0]->qp_num);
	messages("before");
	if (!fork())
		child();
	MUST(wait(&status) > 0 && WIFEXITED(status) && !WEXITSTATUS(status));
	messages("after");
	MUST(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]) && !ibv_destroy_srq(srq) && !ibv_destroy_ah(ah));
	MUST(!ibv_dealloc_mw(mw) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(ibv_cq_ex_to_cq(ex)));
	MUST(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
