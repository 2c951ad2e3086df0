/* What the manual pages say of things that few programs do: messages without bytes, as many pieces as there can be, each
 * asynchronous event, changes to what is in use. Both ends are in this process. Prints what is other, and ends with how many
 * those are. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int wrong;

#define EQUAL(is, must) do { long long is_ = (is), must_ = (must); if (is_ != must_) { \
	printf("%d: %s: %lld, not %lld\n", __LINE__, #is, is_, must_); wrong++; } } while (0)
#define MUST(what) do { if (!(what)) { printf("%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(99); } } while (0)

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define PIECES 32
#define PATIENCE_MS 10000

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static union ibv_gid gid;
static char memory[1 << 16];

/* Two queue pairs that are connected, each with a completion queue. */
struct pair {
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
};

static struct ibv_qp *in_rtr(struct ibv_qp *qp, uint32_t to)
{
	int reliable = qp->qp_type == IBV_QPT_RC;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to, .rq_psn = 7,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1, .ah_attr = { .is_global = 1, .port_num = 1,
		.grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } } };
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		(reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
	return qp;
}

static struct ibv_qp *in_rts(struct ibv_qp *qp)
{
	int reliable = qp->qp_type == IBV_QPT_RC;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 4 };
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN |
		(reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
	return qp;
}

static struct ibv_qp *in_init(struct ibv_cq *cq, enum ibv_qp_type type, struct ibv_srq *srq, int access)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = type,
		.cap = { 64, 64, PIECES, PIECES, 128 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	MUST(qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	return qp;
}

static struct pair pair_with(enum ibv_qp_type type, int access, struct ibv_srq *srq, int cqe)
{
	struct pair pair;
	for (int i = 0; i < 2; i++) {
		MUST(pair.cq[i] = ibv_create_cq(context, i ? 256 : cqe, NULL, NULL, 0));
		pair.qp[i] = in_init(pair.cq[i], type, i ? srq : NULL, access);
	}
	for (int i = 0; i < 2; i++)
		in_rts(in_rtr(pair.qp[i], pair.qp[!i]->qp_num));
	return pair;
}

static struct pair new_pair(void)
{
	return pair_with(IBV_QPT_RC, ALL, NULL, 256);
}

static void end_pair(struct pair pair)
{
	for (int i = 0; i < 2; i++) {
		EQUAL(ibv_destroy_qp(pair.qp[i]), 0);
		EQUAL(ibv_destroy_cq(pair.cq[i]), 0);
	}
}

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static struct ibv_wc take(struct ibv_cq *cq)
{
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	int64_t until = now_ms() + PATIENCE_MS;
	int found = 0;
	while (!found && now_ms() < until)
		found = ibv_poll_cq(cq, 1, &wc);
	EQUAL(found, 1);
	return wc;
}

/* This event comes next, and is of this object. */
static void comes(int line, enum ibv_event_type type, void *object)
{
	struct pollfd file = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	if (poll(&file, 1, PATIENCE_MS) != 1 || ibv_get_async_event(context, &event)) {
		printf("%d: no %s\n", line, ibv_event_type_str(type));
		wrong++;
		return;
	}
	if (event.event_type != type || event.element.qp != object) {
		printf("%d: %s, not %s\n", line, ibv_event_type_str(event.event_type), ibv_event_type_str(type));
		wrong++;
	}
	ibv_ack_async_event(&event);
}

#define COMES(type, object) comes(__LINE__, type, object)

static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, void *bytes, uint32_t len, int flags, void *to, uint32_t rkey)
{
	struct ibv_sge piece = { (uintptr_t)bytes, len, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &piece, .num_sge = bytes != NULL, .opcode = opcode, .imm_data = 0x01020304,
		.send_flags = IBV_SEND_SIGNALED | flags, .wr.rdma = { (uintptr_t)to, rkey } }, *bad;
	return ibv_post_send(qp, &wr, &bad);
}

static int receive(struct ibv_qp *qp, void *bytes, uint32_t len)
{
	struct ibv_sge piece = { (uintptr_t)bytes, len, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &piece, .num_sge = bytes != NULL }, *bad;
	return ibv_post_recv(qp, &wr, &bad);
}

static void write_is(struct pair pair, void *to, uint32_t rkey, enum ibv_wc_status must)
{
	EQUAL(post(pair.qp[0], IBV_WR_RDMA_WRITE, memory, 64, 0, to, rkey), 0);
	EQUAL(take(pair.cq[0]).status, must);
}

/* No piece, or one of no length; inline or not. No key is looked at. */
static void nothing_to_carry(enum ibv_qp_type type)
{
	struct pair pair = pair_with(type, ALL, NULL, 256);
	for (int kind = 0; kind < 4; kind++) {
		void *bytes = kind & 1 ? memory : NULL;
		int flags = kind & 2 ? IBV_SEND_INLINE : 0;
		enum ibv_wr_opcode with_receive[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM };
		for (int i = 0; i < 3; i++) {
			EQUAL(receive(pair.qp[1], NULL, 0), 0);
			EQUAL(post(pair.qp[0], with_receive[i], bytes, 0, flags, NULL, 0), 0);
			struct ibv_wc wc = take(pair.cq[1]);
			EQUAL(wc.status, IBV_WC_SUCCESS);
			EQUAL(wc.byte_len, 0);
			EQUAL(wc.opcode, i < 2 ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM);
			EQUAL(wc.wc_flags, i ? IBV_WC_WITH_IMM : 0);
			EQUAL(i ? wc.imm_data : 0, i ? 0x01020304 : 0);
			EQUAL(take(pair.cq[0]).status, IBV_WC_SUCCESS);
		}
		EQUAL(post(pair.qp[0], IBV_WR_RDMA_WRITE, bytes, 0, flags, NULL, 0), 0);
		EQUAL(take(pair.cq[0]).status, IBV_WC_SUCCESS);
		if (type == IBV_QPT_RC && !flags) {
			EQUAL(post(pair.qp[0], IBV_WR_RDMA_READ, bytes, 0, 0, NULL, 0), 0);
			EQUAL(take(pair.cq[0]).status, IBV_WC_SUCCESS);
		}
	}
	end_pair(pair);
}

/* Pieces of uneven lengths, at both ends of a SEND and at the near one of a WRITE and a READ. */
static void many_pieces(void)
{
	struct pair pair = new_pair();
	char *here = memory + 8000, *there = memory + 30000;
	enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	for (int at = 0; at < 3; at++) {
		struct ibv_sge near[PIECES], far[PIECES];
		uint32_t total = 0;
		for (int i = 0; i < PIECES; i++) {
			near[i] = (struct ibv_sge){ (uintptr_t)here + 100 * i, 1 + 3 * i % 97, mr->lkey };
			far[i] = (struct ibv_sge){ (uintptr_t)there + 200 * i, 60, mr->lkey };
			total += near[i].length;
		}
		for (int i = 0; i < 10000; i++) {
			here[i] = (char)(3 * i + at);
			there[i] = (char)(5 * i + at);
		}
		struct ibv_recv_wr recv = { .sg_list = far, .num_sge = PIECES }, *bad_recv;
		struct ibv_send_wr send = { .sg_list = near, .num_sge = PIECES, .opcode = opcodes[at],
			.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)there, mr->rkey } }, *bad;
		if (at == 0)
			EQUAL(ibv_post_recv(pair.qp[1], &recv, &bad_recv), 0);
		EQUAL(ibv_post_send(pair.qp[0], &send, &bad), 0);
		EQUAL(take(pair.cq[0]).status, IBV_WC_SUCCESS);
		if (at == 0)
			EQUAL(take(pair.cq[1]).byte_len, total);
		uint32_t passed = 0, same = 0;
		for (int i = 0; i < PIECES; i++)
			for (uint32_t k = 0; k < near[i].length; k++, passed++)
				same += here[100 * i + k] == there[at == 0 ? 200 * (passed / 60) + passed % 60 : passed];
		EQUAL(same, total);
		for (uint32_t i = 0; i < total && at == 2; i++)
			EQUAL(there[i], (char)(5 * i + at));
	}
	end_pair(pair);
}

/* A message in RTR says that the connection is established; a queue that was drained says so; what is posted meanwhile waits,
 * and what is changed meanwhile is found. */
static void established_and_drained(void)
{
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
	for (int i = 0; i < 2; i++) {
		MUST(cq[i] = ibv_create_cq(context, 16, NULL, NULL, 0));
		qp[i] = in_init(cq[i], IBV_QPT_RC, NULL, ALL);
	}
	for (int i = 0; i < 2; i++)
		in_rtr(qp[i], qp[!i]->qp_num);
	in_rts(qp[0]);
	EQUAL(receive(qp[1], memory, 8), 0);
	EQUAL(post(qp[0], IBV_WR_SEND, memory, 8, 0, NULL, 0), 0);
	for (int i = 0; i < 2; i++)
		EQUAL(take(cq[i]).status, IBV_WC_SUCCESS);
	COMES(IBV_EVENT_COMM_EST, qp[1]);
	in_rts(qp[1]);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_qp_init_attr init;
	EQUAL(ibv_modify_qp(qp[0], &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	COMES(IBV_EVENT_SQ_DRAINED, qp[0]);
	EQUAL(ibv_query_qp(qp[0], &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_SQD);
	EQUAL(attr.sq_draining, 0);
	EQUAL(receive(qp[1], memory, 8), 0);
	EQUAL(post(qp[0], IBV_WR_SEND, memory, 8, 0, NULL, 0), 0);
	struct ibv_wc wc;
	for (int i = 0; i < 1000; i++)
		EQUAL(ibv_poll_cq(cq[1], 1, &wc), 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_SQD, .timeout = 12, .rnr_retry = 2, .retry_cnt = 3, .min_rnr_timer = 5,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ };
	EQUAL(ibv_modify_qp(qp[0], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER), 0);
	attr.qp_state = IBV_QPS_RTS;
	EQUAL(ibv_modify_qp(qp[0], &attr, IBV_QP_STATE), 0);
	for (int i = 0; i < 2; i++)
		EQUAL(take(cq[i]).status, IBV_WC_SUCCESS);
	memset(&attr, 0xff, sizeof attr);
	EQUAL(ibv_query_qp(qp[0], &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.timeout, 12);
	EQUAL(attr.rnr_retry, 2);
	EQUAL(attr.retry_cnt, 3);
	EQUAL(attr.min_rnr_timer, 5);
	EQUAL(attr.qp_access_flags, IBV_ACCESS_REMOTE_READ);
	EQUAL(attr.dest_qp_num, qp[1]->qp_num);
	EQUAL(attr.path_mtu, IBV_MTU_1024);
	EQUAL(attr.max_rd_atomic, 4);
	EQUAL(attr.max_dest_rd_atomic, 4);
	EQUAL(attr.ah_attr.grh.hop_limit, 64);
	EQUAL(memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof gid), 0);
	EQUAL(init.send_cq == cq[0] && init.recv_cq == cq[0] && !init.srq && init.cap.max_send_sge >= PIECES, 1);
	for (int i = 0; i < 2; i++) {
		EQUAL(ibv_destroy_qp(qp[i]), 0);
		EQUAL(ibv_destroy_cq(cq[i]), 0);
	}
}

static void refused_requests(void)
{
	struct pair pair = new_pair();
	write_is(pair, memory, mr->rkey ^ 0xff, IBV_WC_REM_ACCESS_ERR);
	COMES(IBV_EVENT_QP_ACCESS_ERR, pair.qp[1]);
	end_pair(pair);
	pair = pair_with(IBV_QPT_RC, 0, NULL, 256);
	EQUAL(post(pair.qp[0], IBV_WR_RDMA_READ, memory, 8, 0, memory, mr->rkey), 0);
	EQUAL(take(pair.cq[0]).status, IBV_WC_REM_INV_REQ_ERR);
	COMES(IBV_EVENT_QP_REQ_ERR, pair.qp[1]);
	end_pair(pair);
}

static void shared_receives(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	MUST(srq);
	struct ibv_sge piece = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &piece, .num_sge = 1 }, *bad;
	for (int i = 0; i < 4; i++)
		EQUAL(ibv_post_srq_recv(srq, &wr, &bad), 0);
	struct pair pair = pair_with(IBV_QPT_RC, ALL, srq, 256);
	struct ibv_srq_attr attr = { .srq_limit = 3 };
	EQUAL(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	for (int i = 0; i < 2; i++) {
		EQUAL(post(pair.qp[0], IBV_WR_SEND, memory, 8, 0, NULL, 0), 0);
		EQUAL(take(pair.cq[1]).status, IBV_WC_SUCCESS);
		EQUAL(take(pair.cq[0]).status, IBV_WC_SUCCESS);
	}
	COMES(IBV_EVENT_SRQ_LIMIT_REACHED, srq);
	EQUAL(ibv_query_srq(srq, &attr), 0);
	EQUAL(attr.srq_limit, 0);
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_ERR };
	EQUAL(ibv_modify_qp(pair.qp[1], &to, IBV_QP_STATE), 0);
	COMES(IBV_EVENT_QP_LAST_WQE_REACHED, pair.qp[1]);
	end_pair(pair);
	EQUAL(ibv_destroy_srq(srq), 0);
}

/* A queue that is made larger and smaller while it has completions loses none; one that overruns says so. */
static void completion_queues(void)
{
	struct pair pair = new_pair();
	EQUAL(post(pair.qp[0], IBV_WR_RDMA_WRITE, memory, 8, 0, memory + 100, mr->rkey), 0);
	EQUAL(take(pair.cq[0]).status, IBV_WC_SUCCESS);
	for (int i = 0; i < 60; i++) {
		EQUAL(post(pair.qp[0], IBV_WR_RDMA_WRITE, memory, 8, 0, memory + 100, mr->rkey), 0);
		if (i == 20)
			EQUAL(ibv_resize_cq(pair.cq[0], 100), 0);
		if (i == 40)
			EQUAL(ibv_resize_cq(pair.cq[0], 70), 0);
	}
	for (int i = 0; i < 60; i++)
		EQUAL(take(pair.cq[0]).status, IBV_WC_SUCCESS);
	end_pair(pair);
	pair = pair_with(IBV_QPT_RC, ALL, NULL, 1);
	for (int i = 0; i < pair.cq[0]->cqe + 2; i++)
		EQUAL(post(pair.qp[0], IBV_WR_RDMA_WRITE, memory, 8, 0, memory + 100, mr->rkey), 0);
	COMES(IBV_EVENT_CQ_ERR, pair.cq[0]);
	COMES(IBV_EVENT_QP_FATAL, pair.qp[0]);
	end_pair(pair);
}

/* Each change of a region does what it says to those that use it. */
static void regions(void)
{
	static char before[8192], after[8192];
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_mr *region = ibv_reg_mr(pd, before, sizeof before, ALL);
	MUST(other && region);
	memset(memory, 'a', 64);
	struct pair pair = new_pair();
	write_is(pair, before, region->rkey, IBV_WC_SUCCESS);
	EQUAL(before[63], 'a');
	EQUAL(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, after, sizeof after, 0), 0);
	write_is(pair, after, region->rkey, IBV_WC_SUCCESS);
	EQUAL(after[63], 'a');
	EQUAL(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_READ), 0);
	EQUAL(post(pair.qp[0], IBV_WR_RDMA_READ, memory, 64, 0, after, region->rkey), 0);
	EQUAL(take(pair.cq[0]).status, IBV_WC_SUCCESS);
	write_is(pair, after, region->rkey, IBV_WC_REM_ACCESS_ERR);
	COMES(IBV_EVENT_QP_ACCESS_ERR, pair.qp[1]);
	end_pair(pair);
	pair = new_pair();
	EQUAL(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, other, NULL, 0, ALL), 0);
	EQUAL(region->pd == other && region->addr == after && region->length == sizeof after, 1);
	write_is(pair, after, region->rkey, IBV_WC_REM_ACCESS_ERR);
	COMES(IBV_EVENT_QP_ACCESS_ERR, pair.qp[1]);
	EQUAL(ibv_dealloc_pd(other), EBUSY);
	EQUAL(ibv_dereg_mr(region), 0);
	EQUAL(ibv_dealloc_pd(other), 0);
	end_pair(pair);
}

/* Bytes that are received into the null region are lost, and those that are sent from it are zeros. */
static void null_region(void)
{
	struct pair pair = new_pair();
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	MUST(null);
	struct ibv_sge pieces[] = { { (uintptr_t)memory, 8, mr->lkey }, { 0, 8, null->lkey },
		{ (uintptr_t)memory + 16, 8, mr->lkey } };
	struct ibv_recv_wr recv = { .sg_list = pieces, .num_sge = 3 }, *bad_recv;
	memset(memory, 'x', 64);
	memcpy(memory + 1000, "ABCDEFGHIJKLMNOPQRSTUVWX", 24);
	EQUAL(ibv_post_recv(pair.qp[1], &recv, &bad_recv), 0);
	EQUAL(post(pair.qp[0], IBV_WR_SEND, memory + 1000, 24, 0, NULL, 0), 0);
	for (int i = 0; i < 2; i++)
		EQUAL(take(pair.cq[i]).status, IBV_WC_SUCCESS);
	EQUAL(memcmp(memory, "ABCDEFGHxxxxxxxxQRSTUVWX", 24), 0);
	struct ibv_send_wr send = { .sg_list = pieces + 1, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)memory, mr->rkey } }, *bad;
	EQUAL(ibv_post_send(pair.qp[0], &send, &bad), 0);
	EQUAL(take(pair.cq[0]).status, IBV_WC_SUCCESS);
	EQUAL(memcmp(memory, "\0\0\0\0\0\0\0\0xx", 10), 0);
	/* As long as any other region. */
	pieces[1].length = sizeof memory - 2;
	memset(memory, 'x', sizeof memory);
	EQUAL(ibv_post_send(pair.qp[0], &send, &bad), 0);
	EQUAL(take(pair.cq[0]).status, IBV_WC_SUCCESS);
	size_t zeros = 0;
	while (zeros < sizeof memory && !memory[zeros])
		zeros++;
	EQUAL(zeros, sizeof memory - 2);
	end_pair(pair);
	EQUAL(ibv_dereg_mr(null), 0);
}

static uint64_t now_ns(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* What shows another key than the queue pair's is dropped, and counted by the port also when the queue pair has gone. */
static void wrong_keys(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1111 };
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &way);
	struct ibv_port_attr before, after;
	MUST(cq && qp && ah && !ibv_query_port(context, 1, &before));
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	struct ibv_sge piece = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND, .wr.ud = { ah, qp->qp_num, 0x2222 } }, *bad;
	MUST(!ibv_post_send(qp, &wr, &bad));
	struct ibv_wc wc;
	for (int tries = 0; tries < 1000; tries++) {
		MUST(ibv_poll_cq(cq, 1, &wc) >= 0 && !ibv_query_port(context, 1, &after));
		if (after.qkey_viol_cntr != before.qkey_viol_cntr)
			break;
		usleep(1000);
	}
	EQUAL(after.qkey_viol_cntr, before.qkey_viol_cntr + 1);
	EQUAL(after.bad_pkey_cntr, 0);
	MUST(!ibv_destroy_qp(qp) && !ibv_query_port(context, 1, &after));
	EQUAL(after.qkey_viol_cntr, before.qkey_viol_cntr + 1);
	MUST(!ibv_destroy_ah(ah) && !ibv_destroy_cq(cq));
}

/* A queue that is asked for the times of two clocks says each of its own. */
static void two_clocks(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 8,
		.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	MUST(cq);
	struct ibv_qp *qp = in_init(ibv_cq_ex_to_cq(cq), IBV_QPT_RC, NULL, ALL);
	in_rts(in_rtr(qp, qp->qp_num));
	clockid_t clocks[] = { CLOCK_MONOTONIC, CLOCK_REALTIME };
	uint64_t before[] = { now_ns(clocks[0]), now_ns(clocks[1]) };
	EQUAL(post(qp, IBV_WR_RDMA_WRITE, memory, 64, 0, memory + 4096, mr->rkey), 0);
	struct ibv_poll_cq_attr poll = { 0 };
	int64_t until = now_ms() + PATIENCE_MS;
	int code;
	while ((code = ibv_start_poll(cq, &poll)) == ENOENT && now_ms() < until)
		;
	EQUAL(code, 0);
	uint64_t is[] = { ibv_wc_read_completion_ts(cq), ibv_wc_read_completion_wallclock_ns(cq) };
	for (int i = 0; i < 2; i++)
		EQUAL(before[i] <= is[i] && is[i] <= now_ns(clocks[i]), 1);
	ibv_end_poll(cq);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list && (context = ibv_open_device(*list)) && (pd = ibv_alloc_pd(context)));
	MUST((mr = ibv_reg_mr(pd, memory, sizeof memory, ALL)) && !ibv_query_gid(context, 1, 1, &gid));
	nothing_to_carry(IBV_QPT_RC);
	nothing_to_carry(IBV_QPT_UC);
	many_pieces();
	established_and_drained();
	refused_requests();
	shared_receives();
	completion_queues();
	regions();
	null_region();
	two_clocks();
	wrong_keys();
	struct pollfd file = { .fd = context->async_fd, .events = POLLIN };
	EQUAL(poll(&file, 1, 0), 0); /* No event is left. */
	EQUAL(ibv_dereg_mr(mr), 0);
	EQUAL(ibv_dealloc_pd(pd), 0);
	EQUAL(ibv_close_device(context), 0);
	ibv_free_device_list(list);
	return wrong > 90 ? 90 : wrong;
}
