/* A peer on libibverbs: tells number and PSN of an RC queue pair, reads those of the other side, and answers what it
 * receives with the same bytes in reverse order. */
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MUST(what) do { if (!(what)) { perror(#what); return 1; } } while (0)

int main(void)
{
	static char buffer[64];
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list);
	struct ibv_context *context = ibv_open_device(*list);
	MUST(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	MUST(pd);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	MUST(mr);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	MUST(channel);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	MUST(cq);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	MUST(qp);
	union ibv_gid gid;
	MUST(!ibv_query_gid(context, 1, 1, &gid));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	struct ibv_sge piece = { .addr = (uintptr_t)buffer, .length = sizeof(buffer), .lkey = mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &piece, .num_sge = 1 }, *bad_receive;
	MUST(!ibv_post_recv(qp, &receive, &bad_receive));
	MUST(!ibv_req_notify_cq(cq, 0));
	printf("%u %u\n", qp->qp_num, 77u);
	fflush(stdout);
	unsigned number, psn;
	MUST(scanf("%u %u", &number, &psn) == 2);
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = number, .rq_psn = psn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } } };
	MUST(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = 77, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1 };
	MUST(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
	puts("ready");
	fflush(stdout);
	struct ibv_cq *whose;
	void *mine;
	MUST(!ibv_get_cq_event(channel, &whose, &mine) && whose == cq);
	ibv_ack_cq_events(cq, 1);
	struct ibv_wc done;
	while (!ibv_poll_cq(cq, 1, &done))
		;
	MUST(done.status == IBV_WC_SUCCESS && done.opcode == IBV_WC_RECV);
	for (unsigned i = 0; i < done.byte_len / 2; i++) {
		char other = buffer[i];
		buffer[i] = buffer[done.byte_len - 1 - i];
		buffer[done.byte_len - 1 - i] = other;
	}
	piece.length = done.byte_len;
	struct ibv_send_wr send = { .wr_id = 2, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED }, *bad_send;
	MUST(!ibv_post_send(qp, &send, &bad_send));
	while (!ibv_poll_cq(cq, 1, &done))
		;
	MUST(done.status == IBV_WC_SUCCESS && done.wr_id == 2);
	/* A mistake of the caller's is an error number, and changes nothing. */
	send.opcode = IBV_WR_TSO;
	MUST(ibv_post_send(qp, &send, &bad_send) && bad_send == &send);
	MUST(ibv_destroy_cq(cq) != 0);
	MUST(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
	MUST(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	ibv_free_device_list(list);
	return 0;
}
