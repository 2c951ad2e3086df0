/* Goes through the functions of libibverbs, of tables and of objects while each of them panics, and prints those that do
 * not answer that they have failed. Then it sends itself a message by `ibv_wr_*` and takes its completions from an extended
 * queue: all of it has to be as before. Ends with how many answers were wrong; 77 if the library has no such hook. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong;

static void says(int line, const char *what, long is, long must)
{
	if (is != must) {
		printf("%d: %s: %ld, not %ld\n", line, what, is, must);
		wrong++;
	}
}

#define CODE(call, must) says(__LINE__, #call, (call), (must))
#define MINUS(call) (errno = 0, says(__LINE__, #call, (call) == -1 ? errno : 0, EIO))
#define NONE(call) (errno = 0, says(__LINE__, #call, (call) == NULL ? errno : 0, EIO))
#define MUST(what) do { if (!(what)) { printf("%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(99); } } while (0)

static void (*provoke)(bool);
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_cq_ex *ex;
static struct ibv_qp *qp;
static struct ibv_qp_ex *wr;
static char buffer[4096];

static void make(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list && (context = ibv_open_device(*list)) && (pd = ibv_alloc_pd(context)));
	ibv_free_device_list(list);
	MUST((mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE)));
	MUST((cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	struct ibv_cq_init_attr_ex of = {.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS};
	MUST((ex = ibv_create_cq_ex(context, &of)));
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(ex), .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.cap = {16, 16, 4, 4, 64}, .sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	MUST((qp = ibv_create_qp_ex(context, &attr)) && (wr = ibv_qp_to_qp_ex(qp)));
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}}};
	MUST(!ibv_query_gid(context, 1, 1, &to.ah_attr.grh.dgid));
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void exported(void)
{
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1};
	union ibv_gid gid;
	uint16_t pkey;
	NONE(ibv_get_device_list(NULL));
	NONE(ibv_alloc_pd(context));
	NONE(ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_LOCAL_WRITE));
	NONE(ibv_create_cq(context, 4, NULL, NULL, 0));
	NONE(ibv_create_comp_channel(context));
	NONE(ibv_create_qp(pd, &init));
	NONE(ibv_create_srq(pd, &srq));
	NONE(ibv_create_ah(pd, &ah));
	CODE(ibv_query_device(context, &device), EIO);
	CODE(ibv_query_port(context, 1, &port), EIO);
	CODE(ibv_modify_qp(qp, &attr, 0), EIO);
	CODE(ibv_query_qp(qp, &attr, 0, &init), EIO);
	CODE(ibv_resize_cq(cq, 32), EIO);
	CODE(ibv_dereg_mr(mr), EIO);
	CODE(ibv_dealloc_pd(pd), EIO);
	CODE(ibv_destroy_cq(cq), EIO);
	CODE(ibv_destroy_qp(qp), EIO);
	MINUS(ibv_query_gid(context, 1, 1, &gid));
	MINUS(ibv_query_pkey(context, 1, 0, &pkey));
	MINUS(ibv_close_device(context));
}

static void in_tables(void)
{
	struct ibv_device_attr_ex device;
	struct ibv_cq_init_attr_ex queue = {.cqe = 4};
	struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_RC};
	struct ibv_srq_init_attr_ex srq = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_td_init_attr td = {0};
	struct ibv_alloc_dm_attr dm = {.length = 64};
	struct ibv_sge sge = {(uintptr_t)buffer, 8, mr->lkey};
	struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send = NULL;
	struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad_receive = NULL;
	struct ibv_wc wc;
	CODE(ibv_query_device_ex(context, NULL, &device), EIO);
	NONE(ibv_create_cq_ex(context, &queue));
	NONE(ibv_create_qp_ex(context, &attr));
	NONE(ibv_create_srq_ex(context, &srq));
	NONE(ibv_alloc_td(context, &td));
	NONE(ibv_alloc_dm(context, &dm));
	NONE(ibv_alloc_null_mr(pd));
	NONE(ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	CODE(ibv_post_send(qp, &send, &bad_send), EIO);
	CODE(bad_send == &send, 1);
	CODE(ibv_post_recv(qp, &receive, &bad_receive), EIO);
	CODE(bad_receive == &receive, 1);
	CODE(ibv_poll_cq(cq, 1, &wc), -1);
	CODE(ibv_req_notify_cq(cq, 0), EIO);
}

static void extended(bool panic)
{
	struct ibv_sge sge = {(uintptr_t)buffer, 8, mr->lkey};
	struct ibv_data_buf part = {buffer, 8};
	ibv_wr_start(wr);
	wr->wr_id = 1;
	wr->wr_flags = IBV_SEND_SIGNALED;
	provoke(panic);
	ibv_wr_send(wr);
	ibv_wr_set_sge(wr, mr->lkey, (uintptr_t)buffer, 8);
	ibv_wr_set_sge_list(wr, 1, &sge);
	ibv_wr_set_inline_data(wr, buffer, 8);
	ibv_wr_set_inline_data_list(wr, 1, &part);
	if (panic) {
		ibv_wr_rdma_write(wr, 0, 0);
		ibv_wr_rdma_write_imm(wr, 0, 0, 0);
		ibv_wr_rdma_read(wr, 0, 0);
		ibv_wr_send_imm(wr, 0);
		ibv_wr_send_inv(wr, 0);
		ibv_wr_local_inv(wr, 0);
		ibv_wr_atomic_fetch_add(wr, 0, 0, 0);
		ibv_wr_atomic_cmp_swp(wr, 0, 0, 0, 0);
		ibv_wr_bind_mw(wr, NULL, 0, NULL);
		ibv_wr_set_ud_addr(wr, NULL, 0, 0);
		ibv_wr_set_xrc_srqn(wr, 0);
	}
	provoke(false);
	CODE(ibv_wr_complete(wr), panic ? EIO : 0);
	provoke(panic);
	ibv_wr_start(wr);
	ibv_wr_abort(wr);
	ibv_wr_start(wr);
	CODE(ibv_wr_complete(wr), panic ? EIO : 0);
	provoke(false);
}

static void traffic(void)
{
	struct ibv_sge sge = {(uintptr_t)buffer + 64, 64, mr->lkey};
	struct ibv_recv_wr receive = {.wr_id = 2, .sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_poll_cq_attr none = {0};
	struct ibv_wc wc;
	int found;
	memcpy(buffer, "message", 8);
	MUST(!ibv_post_recv(qp, &receive, &bad));
	extended(false);
	provoke(true);
	CODE(ibv_start_poll(ex, &none), EIO);
	provoke(false);
	while ((found = ibv_start_poll(ex, &none)) == ENOENT)
		;
	CODE(found, 0);
	CODE(ex->status, IBV_WC_SUCCESS);
	CODE(ex->wr_id, 1);
	CODE(ibv_wc_read_opcode(ex), IBV_WC_SEND);
	provoke(true);
	CODE(ibv_next_poll(ex), EIO);
	ibv_wc_read_opcode(ex);
	ibv_wc_read_vendor_err(ex);
	ibv_wc_read_byte_len(ex);
	ibv_wc_read_imm_data(ex);
	ibv_wc_read_qp_num(ex);
	ibv_wc_read_src_qp(ex);
	ibv_wc_read_wc_flags(ex);
	ibv_wc_read_slid(ex);
	ibv_wc_read_sl(ex);
	ibv_wc_read_dlid_path_bits(ex);
	ibv_wc_read_completion_ts(ex);
	ibv_wc_read_completion_wallclock_ns(ex);
	ibv_wc_read_cvlan(ex);
	ibv_wc_read_flow_tag(ex);
	provoke(false);
	ibv_end_poll(ex);
	CODE(ibv_start_poll(ex, &none), ENOENT);
	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CODE(found, 1);
	CODE(wc.status, IBV_WC_SUCCESS);
	CODE(wc.byte_len, 8);
	CODE(memcmp(buffer + 64, "message", 8), 0);
}

int main(void)
{
	provoke = dlsym(RTLD_DEFAULT, "adverb_provoke_panics");
	if (!provoke)
		return 77;
	make();
	provoke(true);
	exported();
	in_tables();
	provoke(false);
	extended(true);
	traffic();
	CODE(ibv_destroy_qp(qp), 0);
	CODE(ibv_destroy_cq(cq), 0);
	CODE(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
	CODE(ibv_dereg_mr(mr), 0);
	CODE(ibv_dealloc_pd(pd), 0);
	CODE(ibv_close_device(context), 0);
	return wrong > 70 ? 70 : wrong;
}
