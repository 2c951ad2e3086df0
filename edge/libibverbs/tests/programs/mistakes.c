/* What a program gets for each mistake: the number that the manual pages name, and nothing done. Prints what is other,
 * and ends with how many those are. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int wrong;

static void says(int line, const char *what, int is, int must)
{
	if (is != must) {
		printf("%d: %s: %d (%s), not %d (%s)\n", line, what, is, strerror(abs(is)), must, strerror(abs(must)));
		wrong++;
	}
}

/* A number of an error, or another answer. */
#define CODE(call, must) says(__LINE__, #call, (call), (must))
/* -1, or null, and errno. */
#define MINUS(call, must) (errno = 0, says(__LINE__, #call, (call) == -1 ? errno : -1, (must)))
#define NONE(call, must) (errno = 0, says(__LINE__, #call, (call) == NULL ? errno : -1, (must)))
#define MUST(what) do { if (!(what)) { printf("%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(99); } } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static char buffer[8192];
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static union ibv_gid gid;

static void devices_and_ports(void)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry entry;
	union ibv_gid found;
	uint16_t pkey;
	int ends[2];
	CODE(ibv_query_port(context, 0, &port), EINVAL);
	CODE(ibv_query_port(context, 2, &port), EINVAL);
	MUST(!ibv_query_port(context, 1, &port));
	MINUS(ibv_query_gid(context, 1, -1, &found), EINVAL);
	MINUS(ibv_query_gid(context, 1, port.gid_tbl_len, &found), EINVAL);
	MINUS(ibv_query_gid(context, 2, 0, &found), EINVAL);
	CODE(ibv_query_gid(context, 1, port.gid_tbl_len - 1, &found), 0);
	CODE(ibv_query_gid_ex(context, 1, port.gid_tbl_len - 1, &entry, 0), ENODATA);
	CODE(ibv_query_gid_ex(context, 1, port.gid_tbl_len, &entry, 0), EINVAL);
	CODE(ibv_query_gid_ex(context, 3, 0, &entry, 0), EINVAL);
	CODE(ibv_query_gid_ex(context, 1, 0, &entry, 1), EOPNOTSUPP);
	CODE(ibv_query_gid_table(context, &entry, 0, 0), -EINVAL);
	CODE(ibv_query_gid_table(context, &entry, 1, 1), -EOPNOTSUPP);
	MINUS(ibv_query_pkey(context, 1, port.pkey_tbl_len, &pkey), EINVAL);
	MINUS(ibv_query_pkey(context, 1, -1, &pkey), EINVAL);
	MINUS(ibv_query_pkey(context, 2, 0, &pkey), EINVAL);
	MINUS(ibv_get_pkey_index(context, 1, htons(0x1234)), EINVAL);
	NONE(ibv_open_device(NULL), EINVAL);
	int foreign = open("/dev/null", O_RDWR);
	NONE(ibv_import_device(foreign), ENODEV);
	MUST(!close(foreign));
	MUST(!pipe(ends));
	NONE(ibv_import_device(ends[0]), EINVAL);
	MUST(!close(ends[0]) && !close(ends[1]));
	NONE(ibv_import_device(-1), EINVAL);
	NONE(ibv_import_pd(context, 0x7fffffff), ENOENT);
	NONE(ibv_import_mr(pd, 0x7fffffff), ENOENT);
	NONE(ibv_import_dm(context, 0x7fffffff), ENOENT);
}

static void regions(void)
{
	struct ibv_mr *bad;
	struct ibv_pd *own = ibv_alloc_pd(context);
	MUST(own);
	NONE(ibv_reg_mr(pd, buffer, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	NONE(ibv_reg_mr(pd, NULL, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	NONE(ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, 4096, 1 << 15), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, (size_t)-1, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	NONE(ibv_reg_mr(NULL, buffer, 4096, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	char *gone = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(gone != MAP_FAILED && !munmap(gone + 4096, 4096));
	NONE(ibv_reg_mr(pd, gone, 8192, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	MUST(!mprotect(gone, 4096, PROT_READ));
	NONE(ibv_reg_mr(pd, gone, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	MUST((bad = ibv_reg_mr(pd, gone, 4096, 0)) && !ibv_dereg_mr(bad));
	NONE(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
	MUST((bad = ibv_reg_mr(own, buffer, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)));
	uint32_t key = bad->lkey;
	CODE(ibv_rereg_mr(bad, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	CODE(ibv_rereg_mr(bad, 1 << 9, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	CODE(ibv_rereg_mr(bad, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	CODE(ibv_rereg_mr(bad, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE), IBV_REREG_MR_ERR_INPUT);
	CODE(ibv_rereg_mr(bad, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buffer, 0, 0), IBV_REREG_MR_ERR_INPUT);
	CODE(ibv_rereg_mr(bad, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buffer + 64, 128, 0), 0);
	CODE(bad->addr == buffer + 64 && bad->length == 128 && bad->lkey == key, 1);
	CODE(ibv_dealloc_pd(own), EBUSY);
	CODE(ibv_dereg_mr(bad), 0);
	CODE(ibv_dealloc_pd(own), 0);
	NONE(ibv_reg_mr_iova(pd, buffer, 4096, UINT64_MAX - 100, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	struct ibv_sge piece = { .addr = (uintptr_t)buffer, .length = 64, .lkey = mr->lkey };
	CODE(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &piece, 1), 0);
	CODE(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 1), EINVAL);
	CODE(ibv_advise_mr(pd, 77, 0, &piece, 1), EOPNOTSUPP);
	CODE(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 1 << 7, &piece, 1), EINVAL);
	piece.length = 1 << 20;
	CODE(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &piece, 1), EFAULT);
	piece.lkey ^= 0xff00;
	CODE(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &piece, 1), EINVAL);
	NONE(ibv_alloc_mw(pd, 7), EINVAL);
}

static void device_memory(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 0 };
	char bytes[64] = { 0 };
	NONE(ibv_alloc_dm(context, &attr), EINVAL);
	attr.length = (size_t)1 << 50;
	NONE(ibv_alloc_dm(context, &attr), ENOMEM);
	attr = (struct ibv_alloc_dm_attr){ .length = 64, .comp_mask = 1 << 9 };
	NONE(ibv_alloc_dm(context, &attr), EINVAL);
	attr.comp_mask = 0;
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	MUST(dm);
	CODE(ibv_memcpy_to_dm(dm, 2, bytes, 4), EINVAL);
	CODE(ibv_memcpy_to_dm(dm, 0, bytes, 3), EINVAL);
	CODE(ibv_memcpy_to_dm(dm, 64, bytes, 4), EINVAL);
	CODE(ibv_memcpy_from_dm(bytes, dm, UINT64_MAX - 3, 4), EINVAL);
	CODE(ibv_memcpy_to_dm(dm, 0, bytes, 64), 0);
	NONE(ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	NONE(ibv_reg_dm_mr(pd, dm, 32, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED), EINVAL);
	struct ibv_mr *in = ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
	MUST(in);
	CODE(ibv_free_dm(dm), EBUSY);
	CODE(ibv_dereg_mr(in), 0);
	CODE(ibv_free_dm(dm), 0);
}

static void domains(void)
{
	struct ibv_td_init_attr td_attr = { .comp_mask = 1 };
	NONE(ibv_alloc_td(context, &td_attr), EINVAL);
	td_attr.comp_mask = 0;
	struct ibv_td *td = ibv_alloc_td(context, &td_attr);
	MUST(td);
	struct ibv_parent_domain_init_attr attr = { .pd = NULL, .td = td };
	NONE(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr = (struct ibv_parent_domain_init_attr){ .pd = pd, .td = td, .comp_mask = 1 << 9 };
	NONE(ibv_alloc_parent_domain(context, &attr), EOPNOTSUPP);
	attr.comp_mask = 0;
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	MUST(parent);
	CODE(ibv_dealloc_td(td), EBUSY);
	CODE(ibv_dealloc_pd(parent), 0);
	CODE(ibv_dealloc_td(td), 0);
	struct ibv_xrcd_init_attr xrcd_attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1 };
	NONE(ibv_open_xrcd(context, &xrcd_attr), EINVAL);
	NONE(ibv_reg_mr_iova(pd, buffer, 0, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
}

static void completion_queues(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	MUST(channel);
	NONE(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, INT32_MAX, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, 8, NULL, NULL, context->num_comp_vectors), EINVAL);
	NONE(ibv_create_cq(context, 8, NULL, NULL, -1), EINVAL);
	struct ibv_cq *own = ibv_create_cq(context, 8, NULL, channel, 0);
	MUST(own && own->cqe >= 8);
	CODE(ibv_resize_cq(own, 0), EINVAL);
	CODE(ibv_resize_cq(own, -5), EINVAL);
	CODE(ibv_resize_cq(own, INT32_MAX), EINVAL);
	CODE(ibv_resize_cq(own, 20), 0);
	CODE(own->cqe >= 20, 1);
	struct ibv_wc wc;
	CODE(ibv_poll_cq(own, 0, &wc), 0);
	CODE(ibv_poll_cq(own, 1, &wc), 0);
	CODE(ibv_destroy_comp_channel(channel), EBUSY);
	CODE(ibv_destroy_cq(own), 0);
	CODE(ibv_destroy_comp_channel(channel), 0);
	struct ibv_cq_init_attr_ex attr = { .cqe = 8, .wc_flags = IBV_WC_EX_WITH_TM_INFO };
	NONE(ibv_create_cq_ex(context, &attr), EOPNOTSUPP);
	attr = (struct ibv_cq_init_attr_ex){ .cqe = 8, .comp_mask = 1 << 9 };
	NONE(ibv_create_cq_ex(context, &attr), EOPNOTSUPP);
	attr = (struct ibv_cq_init_attr_ex){ .cqe = 0 };
	NONE(ibv_create_cq_ex(context, &attr), EINVAL);
	attr = (struct ibv_cq_init_attr_ex){ .cqe = 8 };
	struct ibv_cq_ex *extended = ibv_create_cq_ex(context, &attr);
	MUST(extended);
	struct ibv_poll_cq_attr poll = { 0 };
	CODE(ibv_start_poll(extended, &poll), ENOENT);
	poll.comp_mask = 1;
	CODE(ibv_start_poll(extended, &poll), EINVAL);
	struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE };
	CODE(ibv_modify_cq(ibv_cq_ex_to_cq(extended), &moderation), EOPNOTSUPP);
	CODE(ibv_destroy_cq(ibv_cq_ex_to_cq(extended)), 0);
}

static void shared_receives(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 1u << 30, .max_sge = 1 } };
	NONE(ibv_create_srq(pd, &attr), EINVAL);
	attr.attr = (struct ibv_srq_attr){ .max_wr = 4, .max_sge = 1000 };
	NONE(ibv_create_srq(pd, &attr), EINVAL);
	attr.attr = (struct ibv_srq_attr){ .max_wr = 4, .max_sge = 1 };
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);
	MUST(srq);
	struct ibv_srq_attr change = { .srq_limit = attr.attr.max_wr + 1 };
	CODE(ibv_modify_srq(srq, &change, IBV_SRQ_LIMIT), EINVAL);
	CODE(ibv_modify_srq(srq, &change, 1 << 9), EINVAL);
	struct ibv_sge pieces[40] = { { .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey } };
	struct ibv_recv_wr second = { .wr_id = 2, .sg_list = pieces, .num_sge = (int)attr.attr.max_sge + 1 }, *bad = NULL;
	struct ibv_recv_wr first = { .wr_id = 1, .sg_list = pieces, .num_sge = 1, .next = &second };
	CODE(ibv_post_srq_recv(srq, &first, &bad), EINVAL);
	CODE(bad == &second, 1);
	second.num_sge = -1;
	CODE(ibv_post_srq_recv(srq, &second, &bad), EINVAL);
	first.next = NULL;
	int posted = 1, code;
	while (!(code = ibv_post_srq_recv(srq, &first, &bad)))
		posted++;
	CODE(code, ENOMEM);
	CODE(posted >= 4 && bad == &first, 1);
	uint32_t number;
	CODE(ibv_get_srq_num(srq, &number), EOPNOTSUPP);
	CODE(ibv_destroy_srq(srq), 0);
}

static struct ibv_qp *new_qp(enum ibv_qp_type type, int recv)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = 8, .max_recv_wr = recv, .max_send_sge = 2, .max_recv_sge = 2 } };
	return ibv_create_qp(pd, &init);
}

#define INIT_MASK (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RTR_MASK (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | \
	IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RTS_MASK (IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | \
	IBV_QP_MAX_QP_RD_ATOMIC)

static struct ibv_qp_attr rtr(uint32_t to)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to, .rq_psn = 7,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } } };
}

static void queue_pairs_are_made(void)
{
	struct ibv_qp_init_attr good = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2 } }, init;
	init = good; init.qp_type = IBV_QPT_RAW_PACKET;
	NONE(ibv_create_qp(pd, &init), EOPNOTSUPP);
	init = good; init.qp_type = 99;
	NONE(ibv_create_qp(pd, &init), EOPNOTSUPP);
	init = good; init.send_cq = NULL;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init = good; init.cap.max_send_wr = 1u << 30;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init = good; init.cap.max_recv_sge = 10000;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init = good; init.cap.max_inline_data = 1 << 20;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	NONE(ibv_create_qp(NULL, &good), EINVAL);
	struct ibv_qp_init_attr_ex more = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .pd = pd, .cap = good.cap,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_READ };
	NONE(ibv_create_qp_ex(context, &more), EOPNOTSUPP);
	more.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH;
	NONE(ibv_create_qp_ex(context, &more), EOPNOTSUPP);
	struct ibv_flow_attr flow = { 0 };
	struct ibv_qp *qp = new_qp(IBV_QPT_UD, 8);
	MUST(qp);
	NONE(ibv_create_flow(qp, &flow), EOPNOTSUPP);
	NONE(ibv_qp_to_qp_ex(qp), EINVAL);
	struct ibv_ece ece = { .vendor_id = 1 };
	CODE(ibv_set_ece(qp, &ece), EOPNOTSUPP);
	CODE(ibv_destroy_cq(cq), EBUSY);
	CODE(ibv_destroy_qp(qp), 0);
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ };
	NONE(ibv_create_wq(context, &wq), EOPNOTSUPP);
	struct ibv_counters_init_attr counters = { 0 };
	NONE(ibv_create_counters(context, &counters), EOPNOTSUPP);
}

static void states(void)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_RC, 8);
	MUST(qp);
	struct ibv_sge piece = { .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr send = { .wr_id = 1, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr recv = { .wr_id = 2, .sg_list = &piece, .num_sge = 1 }, *bad_recv;
	struct ibv_qp_attr attr = rtr(qp->qp_num);
	CODE(ibv_post_send(qp, &send, &bad), EINVAL);
	CODE(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	CODE(bad == &send && bad_recv == &recv, 1);
	CODE(ibv_modify_qp(qp, &attr, RTR_MASK), EINVAL);
	attr = (struct ibv_qp_attr){ .qp_state = 77 };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), EINVAL);
	CODE(ibv_modify_qp(qp, &attr, INIT_MASK | IBV_QP_QKEY), EINVAL);
	CODE(ibv_modify_qp(qp, &attr, INIT_MASK | 1 << 30), EINVAL);
	attr.port_num = 2;
	CODE(ibv_modify_qp(qp, &attr, INIT_MASK), EINVAL);
	attr.port_num = 1, attr.pkey_index = 5;
	CODE(ibv_modify_qp(qp, &attr, INIT_MASK), EINVAL);
	attr.pkey_index = 0;
	CODE(ibv_modify_qp(qp, &attr, INIT_MASK | IBV_QP_PATH_MIG_STATE), EINVAL);
	CODE(qp->state, IBV_QPS_RESET);
	CODE(ibv_modify_qp(qp, &attr, INIT_MASK), 0);
	CODE(qp->state, IBV_QPS_INIT);
	CODE(ibv_post_send(qp, &send, &bad), EINVAL);
	CODE(ibv_post_recv(qp, &recv, &bad_recv), 0);
	attr = rtr(qp->qp_num); attr.ah_attr.is_global = 0;
	CODE(ibv_modify_qp(qp, &attr, RTR_MASK), EINVAL);
	attr = rtr(qp->qp_num); attr.ah_attr.grh.sgid_index = 200;
	CODE(ibv_modify_qp(qp, &attr, RTR_MASK), EINVAL);
	attr = rtr(qp->qp_num); attr.ah_attr.port_num = 2;
	CODE(ibv_modify_qp(qp, &attr, RTR_MASK), EINVAL);
	attr = rtr(qp->qp_num); attr.path_mtu = 6;
	CODE(ibv_modify_qp(qp, &attr, RTR_MASK), EINVAL);
	attr = rtr(qp->qp_num); attr.path_mtu = 0;
	CODE(ibv_modify_qp(qp, &attr, RTR_MASK), EINVAL);
	attr = rtr(qp->qp_num);
	CODE(ibv_modify_qp(qp, &attr, RTR_MASK & ~IBV_QP_AV), EINVAL);
	CODE(ibv_modify_qp(qp, &attr, RTR_MASK | IBV_QP_SQ_PSN), EINVAL);
	CODE(qp->state, IBV_QPS_INIT);
	CODE(ibv_modify_qp(qp, &attr, RTR_MASK), 0);
	CODE(ibv_post_send(qp, &send, &bad), EINVAL);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 8, .rnr_retry = 7,
		.max_rd_atomic = 1 };
	CODE(ibv_modify_qp(qp, &attr, RTS_MASK), EINVAL);
	attr.retry_cnt = 7, attr.rnr_retry = 8;
	CODE(ibv_modify_qp(qp, &attr, RTS_MASK), EINVAL);
	attr.rnr_retry = 7, attr.timeout = 32;
	CODE(ibv_modify_qp(qp, &attr, RTS_MASK), EINVAL);
	attr.timeout = 14;
	attr.cur_qp_state = IBV_QPS_INIT;
	CODE(ibv_modify_qp(qp, &attr, RTS_MASK | IBV_QP_CUR_STATE), EINVAL);
	CODE(ibv_modify_qp(qp, &attr, RTS_MASK & ~IBV_QP_TIMEOUT), EINVAL);
	attr.cur_qp_state = IBV_QPS_RTR, attr.path_mig_state = IBV_MIG_ARMED;
	CODE(ibv_modify_qp(qp, &attr, RTS_MASK | IBV_QP_PATH_MIG_STATE), EINVAL);
	attr.path_mig_state = IBV_MIG_MIGRATED;
	CODE(ibv_modify_qp(qp, &attr, RTS_MASK | IBV_QP_PATH_MIG_STATE | IBV_QP_CUR_STATE), 0);
	CODE(qp->state, IBV_QPS_RTS);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_SQD, .cur_qp_state = IBV_QPS_RTS };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PATH_MIG_STATE), EINVAL);
	CODE(qp->state, IBV_QPS_RTS);
	attr = rtr(qp->qp_num);
	CODE(ibv_modify_qp(qp, &attr, RTR_MASK), EINVAL);
	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 1 };
	CODE(ibv_modify_qp_rate_limit(qp, &rate), EOPNOTSUPP);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	CODE(ibv_post_send(qp, &send, &bad), 0);
	CODE(ibv_post_recv(qp, &recv, &bad_recv), 0);
	struct ibv_wc wc[8];
	int flushed = 0;
	for (int tries = 0; flushed < 3 && tries < 1000000; tries++)
		for (int n = ibv_poll_cq(cq, 8, wc); n > 0; n--)
			flushed += wc[n - 1].status == IBV_WC_WR_FLUSH_ERR;
	CODE(flushed, 3);
	CODE(ibv_modify_qp(qp, &attr, 0), 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PATH_MIG_STATE), EINVAL);
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	CODE(ibv_destroy_qp(qp), 0);
	/* Datagrams have no path that migrates. */
	MUST(qp = new_qp(IBV_QPT_UD, 8));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
	attr.qp_state = IBV_QPS_RTR;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_PATH_MIG_STATE), EINVAL);
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	CODE(ibv_destroy_qp(qp), 0);
}

/* A queue pair that is connected to itself. */
static void connect_to_itself(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	MUST(!ibv_modify_qp(qp, &attr, INIT_MASK));
	attr = rtr(qp->qp_num);
	MUST(!ibv_modify_qp(qp, &attr, RTR_MASK));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1 };
	MUST(!ibv_modify_qp(qp, &attr, RTS_MASK));
}

static int take(enum ibv_wc_status status)
{
	struct ibv_wc wc;
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	return wc.status == status ? (int)wc.wr_id : -1;
}

static void posting(void)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_RC, 8);
	MUST(qp);
	connect_to_itself(qp);
	struct ibv_sge pieces[40] = { { .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey } };
	struct ibv_send_wr third = { .wr_id = 3, .sg_list = pieces, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)buffer + 64, mr->rkey } }, *bad = NULL;
	struct ibv_send_wr second = third, first = third;
	first.wr_id = 1, first.next = &second, second.wr_id = 2, second.next = &third;
	second.num_sge = 33;
	CODE(ibv_post_send(qp, &first, &bad), EINVAL);
	CODE(bad == &second, 1);
	CODE(take(IBV_WC_SUCCESS), 1);
	second.num_sge = -1;
	CODE(ibv_post_send(qp, &second, &bad), EINVAL);
	second.num_sge = 1, second.sg_list = NULL;
	CODE(ibv_post_send(qp, &second, &bad), EINVAL);
	second.sg_list = pieces, second.opcode = IBV_WR_TSO;
	CODE(ibv_post_send(qp, &second, &bad), EINVAL);
	second.opcode = 99;
	CODE(ibv_post_send(qp, &second, &bad), EINVAL);
	CODE(bad == &second, 1);
	second.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, second.wr.atomic.remote_addr = (uintptr_t)buffer;
	pieces[0].length = 4;
	CODE(ibv_post_send(qp, &second, &bad), EINVAL);
	pieces[0].length = 8000;
	second.opcode = IBV_WR_SEND, second.send_flags = IBV_SEND_INLINE;
	CODE(ibv_post_send(qp, &second, &bad), EINVAL);
	second.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED, second.opcode = IBV_WR_RDMA_READ;
	pieces[0].length = 8;
	CODE(ibv_post_send(qp, &second, &bad), EINVAL);
	/* Memory that is not registered is found when the request is executed. */
	pieces[0].lkey ^= 0xff00;
	first.next = NULL;
	CODE(ibv_post_send(qp, &first, &bad), 0);
	CODE(take(IBV_WC_LOC_PROT_ERR), 1);
	CODE(ibv_destroy_qp(qp), 0);
	pieces[0].lkey = mr->lkey;

	/* A queue that is full: what fits is posted. */
	qp = new_qp(IBV_QPT_RC, 4);
	MUST(qp);
	struct ibv_recv_wr receives[64], *bad_recv = NULL;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	MUST(!ibv_modify_qp(qp, &attr, INIT_MASK));
	struct ibv_qp_init_attr init;
	MUST(!ibv_query_qp(qp, &attr, IBV_QP_CAP, &init));
	int most = (int)init.cap.max_recv_wr;
	for (int i = 0; i < 64; i++)
		receives[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = pieces, .num_sge = 1, .next = i < 63 ? receives + i + 1 : NULL };
	CODE(ibv_post_recv(qp, receives, &bad_recv), ENOMEM);
	CODE((int)(bad_recv - receives), most);
	receives[0].num_sge = 33, receives[0].next = NULL;
	CODE(ibv_post_recv(qp, receives, &bad_recv), EINVAL);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR };
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	for (int i = 0; i < most; i++)
		CODE(take(IBV_WC_WR_FLUSH_ERR), i);
	CODE(ibv_destroy_qp(qp), 0);

	/* Nothing comes back from a peer that is not connected, so that the send queue fills. */
	struct ibv_qp *deaf = new_qp(IBV_QPT_RC, 4);
	MUST(deaf);
	qp = new_qp(IBV_QPT_RC, 4);
	MUST(qp);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 };
	MUST(!ibv_modify_qp(qp, &attr, INIT_MASK));
	attr = rtr(deaf->qp_num);
	MUST(!ibv_modify_qp(qp, &attr, RTR_MASK));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7 };
	MUST(!ibv_modify_qp(qp, &attr, RTS_MASK));
	MUST(!ibv_query_qp(qp, &attr, IBV_QP_CAP, &init));
	most = (int)init.cap.max_send_wr;
	struct ibv_send_wr sends[64];
	for (int i = 0; i < 64; i++)
		sends[i] = (struct ibv_send_wr){ .wr_id = i, .sg_list = pieces, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED, .next = i < 63 ? sends + i + 1 : NULL };
	CODE(ibv_post_send(qp, sends, &bad), ENOMEM);
	CODE((int)(bad - sends), most);
	/* READs and atomics were given no room. */
	sends[0].opcode = IBV_WR_RDMA_READ, sends[0].next = NULL;
	CODE(ibv_post_send(qp, sends, &bad), EINVAL);
	CODE(ibv_destroy_qp(qp), 0);
	CODE(ibv_destroy_qp(deaf), 0);
}

static void datagrams(void)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_UD, 8);
	MUST(qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5 };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT), EINVAL);
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	struct ibv_ah_attr way = { .is_global = 0, .port_num = 1 };
	NONE(ibv_create_ah(pd, &way), EINVAL);
	way = (struct ibv_ah_attr){ .is_global = 1, .port_num = 2, .grh = { .dgid = gid, .sgid_index = 1 } };
	NONE(ibv_create_ah(pd, &way), EINVAL);
	way.port_num = 1, way.grh.sgid_index = 200;
	NONE(ibv_create_ah(pd, &way), EINVAL);
	way.grh.sgid_index = 1;
	struct ibv_ah *ah = ibv_create_ah(pd, &way);
	MUST(ah);
	struct ibv_sge piece = { .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr send = { .wr_id = 1, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
		.wr.ud = { .ah = NULL, .remote_qpn = qp->qp_num, .remote_qkey = 5 } }, *bad;
	CODE(ibv_post_send(qp, &send, &bad), EINVAL);
	send.wr.ud.ah = ah, send.opcode = IBV_WR_RDMA_WRITE;
	CODE(ibv_post_send(qp, &send, &bad), EINVAL);
	send.opcode = IBV_WR_SEND, piece.length = 8000;
	CODE(ibv_post_send(qp, &send, &bad), EINVAL);
	union ibv_gid one = { .raw = { 0xfe, 0x80 } };
	CODE(ibv_attach_mcast(qp, &one, 0), EINVAL);
	union ibv_gid many = { .raw = { 0xff, 0x0e, [10] = 0xff, 0xff, 224, 9, 9, 9 } };
	CODE(ibv_detach_mcast(qp, &many, 0), EINVAL);
	struct ibv_qp *other = new_qp(IBV_QPT_RC, 1);
	MUST(other);
	CODE(ibv_attach_mcast(other, &many, 0), EINVAL);
	CODE(ibv_attach_mcast(qp, &many, 0), 0);
	CODE(ibv_attach_mcast(qp, &many, 0), 0);
	CODE(ibv_destroy_qp(qp), EBUSY);
	CODE(ibv_detach_mcast(qp, &many, 0), 0);
	CODE(ibv_detach_mcast(qp, &many, 0), EINVAL);
	/* The same group, as the address of IPv4 alone. */
	union ibv_gid same = { .raw = { [10] = 0xff, 0xff, 224, 9, 9, 9 } };
	CODE(ibv_attach_mcast(qp, &many, 0), 0);
	CODE(ibv_attach_mcast(qp, &same, 0), 0);
	CODE(ibv_destroy_qp(qp), EBUSY);
	CODE(ibv_detach_mcast(qp, &same, 0), 0);
	CODE(ibv_detach_mcast(qp, &many, 0), EINVAL);
	CODE(ibv_destroy_qp(other), 0);
	CODE(ibv_destroy_ah(ah), 0);
	CODE(ibv_destroy_qp(qp), 0);
}

static void extended_posting(void)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_BIND_MW };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	MUST(qp);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	MUST(ex);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
	CODE(ibv_wr_complete(ex), EINVAL); /* RESET */
	connect_to_itself(qp);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_start(ex);
	for (ex->wr_id = 0; ex->wr_id < 100; ex->wr_id++) {
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 64);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
	}
	CODE(ibv_wr_complete(ex), ENOMEM);
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 64);
	ibv_wr_set_inline_data(ex, buffer, sizeof(buffer));
	CODE(ibv_wr_complete(ex), ENOMEM);
	ibv_wr_start(ex);
	struct ibv_sge many[40] = { { 0 } };
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 64);
	ibv_wr_set_sge_list(ex, 40, many);
	CODE(ibv_wr_complete(ex), EINVAL);
	struct ibv_mw_bind_info info = { .mr = NULL };
	ibv_wr_start(ex);
	ibv_wr_bind_mw(ex, NULL, 0, &info);
	CODE(ibv_wr_complete(ex), EINVAL);
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 64);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
	ibv_wr_abort(ex);
	/* An atomic of 4 bytes: what was put together before it is not posted either. */
	ibv_wr_start(ex);
	for (int i = 0; i < 3; i++) {
		if (i < 2)
			ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 64);
		else
			ibv_wr_atomic_fetch_add(ex, mr->rkey, (uintptr_t)buffer + 64, 1);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, i < 2 ? 8 : 4);
	}
	CODE(ibv_wr_complete(ex), EINVAL);
	ibv_wr_start(ex);
	CODE(ibv_wr_complete(ex), 0);
	/* None of all these was posted. */
	ex->wr_id = 7;
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 64);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
	CODE(ibv_wr_complete(ex), 0);
	CODE(take(IBV_WC_SUCCESS), 7);
	CODE(ibv_destroy_qp(qp), 0);
}

/* What others are made of cannot go before them. */
static void children(void)
{
	struct ibv_pd *own = ibv_alloc_pd(context), *kept = pd;
	MUST(own);
	pd = own;
	struct ibv_qp *qp = new_qp(IBV_QPT_RC, 4);
	MUST(qp);
	CODE(ibv_dealloc_pd(own), EBUSY);
	CODE(ibv_destroy_qp(qp), 0);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(own, &srq_init);
	MUST(srq);
	CODE(ibv_dealloc_pd(own), EBUSY);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 } };
	MUST(qp = ibv_create_qp(kept, &init));
	CODE(ibv_destroy_srq(srq), EBUSY);
	CODE(ibv_destroy_qp(qp), 0);
	CODE(ibv_destroy_srq(srq), 0);
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1 } };
	struct ibv_ah *ah = ibv_create_ah(own, &way);
	MUST(ah);
	CODE(ibv_dealloc_pd(own), EBUSY);
	CODE(ibv_destroy_ah(ah), 0);
	struct ibv_mw *mw = ibv_alloc_mw(own, IBV_MW_TYPE_2);
	MUST(mw);
	CODE(ibv_dealloc_pd(own), EBUSY);
	CODE(ibv_dealloc_mw(mw), 0);
	struct ibv_parent_domain_init_attr parent_init = { .pd = own };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &parent_init);
	MUST(parent);
	CODE(ibv_dealloc_pd(own), EBUSY);
	CODE(ibv_dealloc_pd(parent), 0);
	struct ibv_xrcd_init_attr xrcd_init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
		.oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &xrcd_init);
	struct ibv_cq *its = ibv_create_cq(context, 4, NULL, NULL, 0);
	MUST(xrcd && its);
	struct ibv_srq_init_attr_ex xrc_init = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .xrcd = xrcd,
		.cq = its, .pd = own, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ |
		IBV_SRQ_INIT_ATTR_PD };
	MUST(srq = ibv_create_srq_ex(context, &xrc_init));
	CODE(ibv_close_xrcd(xrcd), EBUSY);
	CODE(ibv_destroy_cq(its), EBUSY);
	CODE(ibv_dealloc_pd(own), EBUSY);
	CODE(ibv_destroy_srq(srq), 0);
	CODE(ibv_destroy_cq(its), 0);
	CODE(ibv_close_xrcd(xrcd), 0);
	CODE(ibv_dealloc_pd(own), 0);
	pd = kept;
}

/* Lists that claim to be longer than they are: nothing behind their end is looked at. Numbers of requests may be any. */
static void lists(void)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(pages != MAP_FAILED && !mprotect(pages + 4096, 4096, PROT_NONE));
	struct ibv_sge *last = (struct ibv_sge *)(pages + 4096) - 1;
	*last = (struct ibv_sge){ .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey };
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	MUST(qp);
	connect_to_itself(qp);
	struct ibv_send_wr send = { .wr_id = UINT64_MAX, .sg_list = last, .num_sge = INT32_MAX, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { (uintptr_t)buffer + 64, mr->rkey } }, *bad;
	struct ibv_recv_wr recv = { .wr_id = UINT64_MAX, .sg_list = last, .num_sge = INT32_MAX }, *bad_recv;
	for (int flags = 0; flags < 2; flags++) {
		send.send_flags = IBV_SEND_SIGNALED | (flags ? IBV_SEND_INLINE : 0);
		CODE(ibv_post_send(qp, &send, &bad), EINVAL);
	}
	CODE(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	for (size_t count = SIZE_MAX; count > 2; count >>= 20) {
		ibv_wr_start(ex);
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 64);
		ibv_wr_set_sge_list(ex, count, last);
		CODE(ibv_wr_complete(ex), EINVAL);
	}
	struct ibv_data_buf *part = (struct ibv_data_buf *)(pages + 4096) - 1;
	*part = (struct ibv_data_buf){ .addr = buffer, .length = 0 };
	for (size_t count = SIZE_MAX; count > init.cap.max_inline_data; count >>= 20) {
		ibv_wr_start(ex);
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 64);
		ibv_wr_set_inline_data_list(ex, count, part);
		CODE(ibv_wr_complete(ex), ENOMEM);
		ibv_wr_start(ex);
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 64);
		ibv_wr_set_inline_data(ex, buffer, count);
		CODE(ibv_wr_complete(ex), ENOMEM);
	}
	/* As many parts as a request can have. */
	static struct ibv_data_buf parts[4096];
	MUST(init.cap.max_inline_data > 2 && init.cap.max_inline_data <= 4096);
	for (uint32_t i = 0; i < init.cap.max_inline_data; i++) {
		buffer[i] = (char)i;
		parts[i] = (struct ibv_data_buf){ .addr = buffer + i, .length = 1 };
	}
	ex->wr_id = 5, ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 4096);
	ibv_wr_set_inline_data_list(ex, init.cap.max_inline_data, parts);
	CODE(ibv_wr_complete(ex), 0);
	CODE(take(IBV_WC_SUCCESS), 5);
	CODE(memcmp(buffer, buffer + 4096, init.cap.max_inline_data), 0);
	*last = (struct ibv_sge){ .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey };
	send.num_sge = 1;
	CODE(ibv_post_send(qp, &send, &bad), 0);
	struct ibv_wc wc;
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	CODE(wc.status == IBV_WC_SUCCESS && wc.wr_id == UINT64_MAX, 1);
	CODE(ibv_destroy_qp(qp), 0);
	munmap(pages, 8192);
}

static void nothing(void)
{
	CODE(ibv_dealloc_pd(NULL), EINVAL);
	CODE(ibv_dereg_mr(NULL), EINVAL);
	CODE(ibv_destroy_cq(NULL), EINVAL);
	CODE(ibv_destroy_qp(NULL), EINVAL);
	CODE(ibv_destroy_srq(NULL), EINVAL);
	CODE(ibv_destroy_ah(NULL), EINVAL);
	CODE(ibv_destroy_comp_channel(NULL), EINVAL);
	MINUS(ibv_close_device(NULL), EINVAL);
	NONE(ibv_alloc_pd(NULL), EINVAL);
}

/* The kernel finds what a call names among the objects of the call's context. */
static void two_contexts(void)
{
	struct ibv_context *other = ibv_open_device(context->device);
	MUST(other);
	struct ibv_pd *pds = ibv_alloc_pd(other);
	struct ibv_cq *cqs = ibv_create_cq(other, 8, NULL, NULL, 0);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(other);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pds, &srq_init);
	struct ibv_xrcd_init_attr xrcd_init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
		.oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(other, &xrcd_init), *own = ibv_open_xrcd(context, &xrcd_init);
	MUST(pds && cqs && channel && srq && xrcd && own);
	NONE(ibv_create_cq(context, 8, NULL, channel, 0), EINVAL);
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 8, .channel = channel };
	NONE(ibv_create_cq_ex(context, &cq_init), EINVAL);
	CODE(channel->refcnt, 0);
	struct ibv_qp_init_attr good = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1 } }, init;
	init = good; init.send_cq = cqs;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init = good; init.recv_cq = cqs;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init = good; init.srq = srq;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	NONE(ibv_create_qp(pds, &good), EINVAL);
	struct ibv_qp_init_attr_ex more = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	NONE(ibv_create_qp_ex(context, &more), EINVAL);
	more = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pds,
		.send_cq = cq, .cap = { 4, 0, 1, 0 } };
	NONE(ibv_create_qp_ex(context, &more), EINVAL);
	struct ibv_srq_init_attr_ex xrc = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd,
		.xrcd = own, .cq = cqs, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
		IBV_SRQ_INIT_ATTR_CQ };
	NONE(ibv_create_srq_ex(context, &xrc), EINVAL);
	xrc.cq = cq, xrc.xrcd = xrcd;
	NONE(ibv_create_srq_ex(context, &xrc), EINVAL);
	xrc.xrcd = own, xrc.pd = pds;
	NONE(ibv_create_srq_ex(context, &xrc), EINVAL);
	MINUS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pds, NULL, 0, 0), EINVAL);
	CODE(ibv_close_xrcd(own), 0);
	CODE(ibv_close_xrcd(xrcd), 0);
	CODE(ibv_destroy_srq(srq), 0);
	CODE(ibv_destroy_comp_channel(channel), 0);
	CODE(ibv_destroy_cq(cqs), 0);
	CODE(ibv_dealloc_pd(pds), 0);
	CODE(ibv_close_device(other), 0);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list && (context = ibv_open_device(*list)) && (pd = ibv_alloc_pd(context)));
	MUST((mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		IBV_ACCESS_REMOTE_READ)));
	MUST((cq = ibv_create_cq(context, 256, NULL, NULL, 0)));
	MUST(!ibv_query_gid(context, 1, 1, &gid));
	devices_and_ports();
	regions();
	device_memory();
	domains();
	completion_queues();
	shared_receives();
	queue_pairs_are_made();
	states();
	posting();
	datagrams();
	extended_posting();
	children();
	lists();
	nothing();
	two_contexts();
	CODE(ibv_destroy_cq(cq), 0);
	CODE(ibv_dereg_mr(mr), 0);
	CODE(ibv_dealloc_pd(pd), 0);
	CODE(ibv_close_device(context), 0);
	ibv_free_device_list(list);
	return wrong > 90 ? 90 : wrong;
}
