/* FLUSH and ATOMIC WRITE, of which the header that this is compiled with knows half: what a device says of them, what they do, and
 * what each mistake gives. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)
#define REFUSED(what, why) do { errno = 0; MUST(!(what) && errno == (why)); } while (0)

/* Of rdma-core 65. */
enum { WITH_FLUSH = 1 << 11, FLUSH_GLOBAL = 1 << 8, FLUSH_PERSISTENT = 1 << 9 };
enum { TO_GLOBAL = 1, TO_PERSISTENT = 2, RANGE = 0, REGION = 1, DID_FLUSH = 8 };
struct later {
	struct ibv_qp_ex known;
	void (*wr_flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t at, size_t len, uint8_t placement, uint8_t selectivity);
};
_Static_assert(offsetof(struct later, wr_flush) == 352, "where rdma-core has it");

static uint64_t words[64];
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;

static struct ibv_qp *made(enum ibv_qp_type type, uint64_t operations)
{
	struct ibv_qp_init_attr_ex init = {.send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 8}, .qp_type = type, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = operations};
	return ibv_create_qp_ex(context, &init);
}

static void connect_it(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | FLUSH_GLOBAL};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .min_rnr_timer = 12,
		.max_dest_rd_atomic = 4, .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}}};
	MUST(!ibv_query_gid(context, 1, 1, &to.ah_attr.grh.dgid));
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

/* One end of a new connection, in the place of the one before. */
static struct ibv_qp *anew(void)
{
	static struct ibv_qp *ends[2];
	for (int i = 0; i < 2; i++) {
		MUST(!ends[i] || !ibv_destroy_qp(ends[i]));
		MUST((ends[i] = made(IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_WRITE | WITH_FLUSH)));
	}
	for (int i = 0; i < 2; i++)
		connect_it(ends[i], ends[!i]->qp_num);
	return ends[0];
}

static int next(int opcode)
{
	struct ibv_wc wc;
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	MUST(wc.status || (int)wc.opcode == opcode);
	return wc.status;
}

static int flush(struct ibv_qp *qp, uint64_t at, size_t len, uint8_t placement, uint8_t selectivity)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	MUST(ex);
	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	((struct later *)ex)->wr_flush(ex, mr->rkey, at, len, placement, selectivity);
	MUST(!ibv_wr_complete(ex));
	return next(DID_FLUSH);
}

static int placed(struct ibv_qp *qp, uint64_t at, uint64_t what)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(ex);
	ex->wr_id = 2;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_write(ex, mr->rkey, at, &what);
	MUST(!ibv_wr_complete(ex));
	return next(IBV_WC_ATOMIC_WRITE);
}

static int posted(struct ibv_qp *qp, uint32_t bytes, int flags, uint64_t what)
{
	words[40] = what;
	struct ibv_sge piece = {(uintptr_t)&words[40], bytes, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 3, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_ATOMIC_WRITE,
		.send_flags = IBV_SEND_SIGNALED | flags, .wr.rdma = {(uintptr_t)&words[1], mr->rkey}}, *bad;
	int refused = ibv_post_send(qp, &wr, &bad);
	MUST(!refused || bad == &wr);
	return refused ? -refused : next(IBV_WC_ATOMIC_WRITE);
}

int main(void)
{
	alarm(30); /* Whatever hangs. */
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list && (context = ibv_open_device(*list)));
	struct ibv_device_attr_ex all;
	MUST(!ibv_query_device_ex(context, NULL, &all));
	MUST((all.device_cap_flags_ex >> 38 & 7) == 5); /* FLUSH to global visibility, ATOMIC WRITE; not to persistence. */
	MUST((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 32, NULL, NULL, 0)));
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	REFUSED(ibv_reg_mr(pd, words, sizeof words, access | FLUSH_PERSISTENT), EINVAL);
	MUST((mr = ibv_reg_mr(pd, words, sizeof words, access | FLUSH_GLOBAL)));
	REFUSED(made(IBV_QPT_UC, WITH_FLUSH), EOPNOTSUPP);
	REFUSED(made(IBV_QPT_UC, IBV_QP_EX_WITH_ATOMIC_WRITE), EOPNOTSUPP);
	REFUSED(made(IBV_QPT_UD, WITH_FLUSH), EOPNOTSUPP);

	struct ibv_qp *qp = anew();
	uint64_t at = (uintptr_t)words;
	MUST(!flush(qp, at, 64, TO_GLOBAL, RANGE) && !flush(qp, at, 0, TO_GLOBAL, REGION));
	MUST(!placed(qp, at, 0x0123456789abcdef) && words[0] == 0x0123456789abcdef);
	MUST(!posted(qp, 8, 0, 7) && words[1] == 7 && !posted(qp, 8, IBV_SEND_INLINE, 8) && words[1] == 8);
	MUST(posted(qp, 4, 0, 9) == -EINVAL);

	/* Each ends its connection. */
	MUST(flush(anew(), at + sizeof words, 8, TO_GLOBAL, RANGE) == IBV_WC_REM_ACCESS_ERR);
	MUST(flush(anew(), at, 8, TO_PERSISTENT, RANGE) == IBV_WC_REM_ACCESS_ERR);
	MUST(flush(anew(), at, 8, 0, RANGE) == IBV_WC_REM_INV_REQ_ERR);
	MUST(placed(anew(), at + 4, 1) == IBV_WC_REM_INV_REQ_ERR);
	MUST(placed(anew(), at + sizeof words, 1) == IBV_WC_REM_ACCESS_ERR);
	MUST(words[0] == 0x0123456789abcdef && words[1] == 8);
	ibv_free_device_list(list);
	return 0;
}
