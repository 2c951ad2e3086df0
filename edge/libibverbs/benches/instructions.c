/* The operations of host/verbs/benches/instructions.rs, as a program of C posts and polls them: `cargo xtask record` runs this
 * under callgrind with the library in front of it, which counts what the functions `counted_...` do. Both queue pairs are in
 * this process, on the loopback device, and one completion queue takes everything.
 *
 * Without an argument it lists the operations, and how many each is; with the name of one it runs that. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 1600
#define BATCH 16
#define BYTES 64

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

static char memory[BYTES] __attribute__((aligned(64)));
static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *a, *b;
static struct ibv_sge whole;

static void wait_for(int count)
{
	struct ibv_wc wc[BATCH];
	while (count > 0) {
		int found = ibv_poll_cq(cq, BATCH, wc);
		for (int i = 0; i < found; i++)
			MUST(wc[i].status == IBV_WC_SUCCESS);
		MUST(found >= 0);
		count -= found;
	}
}

static void post(enum ibv_wr_opcode opcode, int flags)
{
	struct ibv_send_wr wr, *bad;
	memset(&wr, 0, sizeof wr);
	wr.wr_id = 1;
	wr.sg_list = &whole;
	wr.num_sge = 1;
	wr.opcode = opcode;
	wr.send_flags = IBV_SEND_SIGNALED | flags;
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = mr->rkey;
	MUST(!ibv_post_send(a, &wr, &bad));
}

static void receive(void)
{
	struct ibv_recv_wr wr = {.wr_id = 2, .sg_list = &whole, .num_sge = 1}, *bad;
	MUST(!ibv_post_recv(b, &wr, &bad));
}

__attribute__((noinline)) void counted_c_poll_empty(void)
{
	struct ibv_wc wc[BATCH];
	for (int round = 0; round < ROUNDS; round++)
		MUST(!ibv_poll_cq(cq, BATCH, wc));
}

__attribute__((noinline)) void counted_c_send_64_inline(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		receive();
		post(IBV_WR_SEND, IBV_SEND_INLINE);
		wait_for(2);
	}
}

__attribute__((noinline)) void counted_c_write_64_inline(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		post(IBV_WR_RDMA_WRITE, IBV_SEND_INLINE);
		wait_for(1);
	}
}

__attribute__((noinline)) void counted_c_read_64(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		post(IBV_WR_RDMA_READ, 0);
		wait_for(1);
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} OPERATIONS[] = {
	{"c_poll_empty", counted_c_poll_empty},
	{"c_send_64_inline", counted_c_send_64_inline},
	{"c_write_64_inline", counted_c_write_64_inline},
	{"c_read_64", counted_c_read_64},
};

static struct ibv_qp *make(struct ibv_pd *pd)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .cap = {64, 64, 1, 1, BYTES}, .qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
	MUST(qp && !ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	return qp;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 16, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}}};
	MUST(!ibv_query_gid(context, 1, 1, &to.ah_attr.grh.dgid));
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Everything that happens only the first few times happens here. */
static void warm_up(void)
{
	for (int round = 0; round < 2 * ROUNDS; round++) {
		receive();
		post(IBV_WR_SEND, IBV_SEND_INLINE);
		wait_for(2);
		post(IBV_WR_RDMA_READ, 0);
		wait_for(1);
	}
}

int main(int argc, char **argv)
{
	size_t count = sizeof OPERATIONS / sizeof *OPERATIONS;
	if (argc < 2) {
		for (size_t i = 0; i < count; i++)
			printf("%s %d\n", OPERATIONS[i].name, ROUNDS);
		return 0;
	}
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list && (context = ibv_open_device(*list)));
	struct ibv_pd *pd = ibv_alloc_pd(context);
	MUST(pd && (cq = ibv_create_cq(context, 256, NULL, NULL, 0)));
	MUST((mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		IBV_ACCESS_REMOTE_READ)));
	whole = (struct ibv_sge){(uintptr_t)memory, BYTES, mr->lkey};
	a = make(pd);
	b = make(pd);
	connect_to(a, b);
	connect_to(b, a);
	warm_up();
	for (size_t i = 0; i < count; i++)
		if (!strcmp(OPERATIONS[i].name, argv[1]))
			OPERATIONS[i].run();
	return 0;
}
