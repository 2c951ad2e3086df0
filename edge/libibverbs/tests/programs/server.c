/* A server on libibverbs whose peers may send anything: queue pairs of each type, receives, a shared receive queue, an
 * extended completion queue, requests of its own that wait for answers. It prints the numbers of the queue pairs, then the
 * address and key of memory that peers may use. Afterwards it answers lines: `r`: the bytes it has resident, and what has
 * happened; `q`: it ends, after it has sent itself a message. What fails is made again. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

enum { RC, RC_SHARED, UC, UD, XRC, KINDS };
#define RECEIVES 16
#define QKEY 0x11111111

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq, *ex_cq;
static struct ibv_cq_ex *ex;
static struct ibv_srq *srq, *xsrq;
static struct ibv_xrcd *xrcd;
static struct ibv_qp *qps[KINDS];
static union ibv_gid gid;
static char memory[1 << 16];
static unsigned long completions, failures, events, restarts;

static void receive(int at)
{
	struct ibv_sge sge = {(uintptr_t)memory, 4096 + 40, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = at, .sg_list = &sge, .num_sge = 1}, *bad;
	if (at == RC_SHARED)
		ibv_post_srq_recv(srq, &wr, &bad);
	else if (at == XRC)
		ibv_post_srq_recv(xsrq, &wr, &bad);
	else
		ibv_post_recv(qps[at], &wr, &bad);
}

static void request(int at)
{
	struct ibv_sge sge = {(uintptr_t)memory + 8192, 4096, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = KINDS + at, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.opcode = at == RC ? IBV_WR_RDMA_READ : IBV_WR_SEND}, *bad;
	wr.wr.rdma.remote_addr = 0x1000;
	ibv_post_send(qps[at], &wr, &bad);
}

static int has_failed(int at)
{
	struct ibv_qp_attr is;
	struct ibv_qp_init_attr init;
	MUST(!ibv_query_qp(qps[at], &is, IBV_QP_STATE, &init));
	return is.qp_state == IBV_QPS_ERR || is.qp_state == IBV_QPS_SQE;
}

static void start(int at, uint32_t peer)
{
	struct ibv_qp *qp = qps[at];
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		(at == UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
	if (at != XRC)
		for (int i = 0; i < RECEIVES; i++)
			receive(at);
	int reliable = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer,
		.max_dest_rd_atomic = 16, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 64}}};
	int connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | (at == UC ? 0 : reliable);
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | (at == UD ? 0 : connected)));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 10, .retry_cnt = 3, .rnr_retry = 3, .max_rd_atomic = 4};
	int waits = at == XRC ? IBV_QP_TIMEOUT : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	if (ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN | (at == UC || at == UD ? 0 : waits))) {
		MUST(has_failed(at)); /* By what has come since it receives. It is made ready again. */
		return;
	}
	if (at == RC || at == RC_SHARED)
		request(at);
}

static void make(int at)
{
	static const enum ibv_qp_type TYPES[] = {IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV};
	struct ibv_qp_init_attr_ex attr = {.qp_type = TYPES[at], .send_cq = cq, .recv_cq = at == UC ? ex_cq : cq,
		.srq = at == RC_SHARED ? srq : NULL, .cap = {4, RECEIVES, 1, 1, 64}, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD};
	if (at == XRC) {
		attr = (struct ibv_qp_init_attr_ex){.qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	}
	MUST((qps[at] = ibv_create_qp_ex(context, &attr)));
}

/* What has failed is made ready again, as a server does that serves others, too. */
static void mend(void)
{
	for (int at = 0; at < KINDS; at++) {
		if (has_failed(at)) {
			struct ibv_qp_attr to = {.qp_state = IBV_QPS_RESET};
			MUST(!ibv_modify_qp(qps[at], &to, IBV_QP_STATE));
			start(at, 0x55);
			restarts++;
		}
	}
}

static void completed(uint64_t wr_id, enum ibv_wc_status status)
{
	completions++;
	failures += status != IBV_WC_SUCCESS;
	if (status == IBV_WC_SUCCESS || wr_id == RC_SHARED || wr_id == XRC) {
		if (wr_id < KINDS)
			receive(wr_id);
		else
			request(wr_id - KINDS);
	}
}

static void serve(void)
{
	struct ibv_wc wc[8];
	struct ibv_poll_cq_attr none = {0};
	struct ibv_async_event event;
	int found = ibv_poll_cq(cq, 8, wc);
	MUST(found >= 0);
	for (int i = 0; i < found; i++)
		completed(wc[i].wr_id, wc[i].status);
	if (!ibv_start_poll(ex, &none)) {
		do {
			uint64_t wr_id = ex->wr_id;
			enum ibv_wc_status status = ex->status;
			ibv_wc_read_opcode(ex);
			ibv_wc_read_byte_len(ex);
			ibv_wc_read_wc_flags(ex);
			ibv_wc_read_imm_data(ex);
			ibv_wc_read_vendor_err(ex);
			completed(wr_id, status);
		} while (!ibv_next_poll(ex));
		ibv_end_poll(ex);
	}
	while (!ibv_get_async_event(context, &event)) {
		events++;
		ibv_ack_async_event(&event);
	}
}

static long resident(void)
{
	long size, pages;
	FILE *file = fopen("/proc/self/statm", "r");
	MUST(file && fscanf(file, "%ld %ld", &size, &pages) == 2);
	fclose(file);
	return pages * sysconf(_SC_PAGESIZE);
}

static void is_sound(void)
{
	make(UC);
	start(UC, qps[UC]->qp_num);
	memcpy(memory + 8192, "sound", 6);
	memset(memory, 0, 64);
	/* It may be dropped, behind what is still on its way from the peers. */
	for (int tries = 0; memcmp(memory, "sound", 6) && tries < 10000; tries++) {
		if (tries % 100 == 0)
			request(UC);
		serve();
		usleep(1000);
	}
	MUST(!memcmp(memory, "sound", 6));
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list && (context = ibv_open_device(*list)) && (pd = ibv_alloc_pd(context)));
	MUST(!fcntl(context->async_fd, F_SETFL, O_NONBLOCK) && !ibv_query_gid(context, 1, 1, &gid));
	MUST((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)));
	MUST((cq = ibv_create_cq(context, 1024, NULL, NULL, 0)));
	struct ibv_cq_init_attr_ex queue = {.cqe = 1024, .wc_flags = IBV_WC_STANDARD_FLAGS};
	MUST((ex = ibv_create_cq_ex(context, &queue)) && (ex_cq = ibv_cq_ex_to_cq(ex)));
	struct ibv_srq_init_attr plain = {.attr = {.max_wr = 64, .max_sge = 1}};
	MUST((srq = ibv_create_srq(pd, &plain)));
	struct ibv_xrcd_init_attr domain = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
		.oflags = O_CREAT};
	MUST((xrcd = ibv_open_xrcd(context, &domain)));
	struct ibv_srq_init_attr_ex shared = {.attr = {.max_wr = 64, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .xrcd = xrcd,
		.cq = cq, .pd = pd, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ |
		IBV_SRQ_INIT_ATTR_PD};
	MUST((xsrq = ibv_create_srq_ex(context, &shared)));
	for (int i = 0; i < RECEIVES; i++)
		receive(XRC);
	for (int at = 0; at < KINDS; at++) {
		make(at);
		start(at, 0x55);
		printf("%u ", qps[at]->qp_num);
	}
	uint32_t number;
	MUST(!ibv_get_srq_num(xsrq, &number));
	printf("%" PRIuPTR " %u %u\n", (uintptr_t)memory, mr->rkey, number);
	fflush(stdout);
	struct pollfd input = {.fd = 0, .events = POLLIN};
	for (;;) {
		char line;
		for (int i = 0; i < 200; i++)
			serve();
		mend();
		if (poll(&input, 1, 0) != 1 || read(0, &line, 1) != 1)
			continue;
		if (line == 'q')
			break;
		if (line == 'r') {
			printf("%ld %lu %lu %lu %lu\n", resident(), completions, failures, events, restarts);
			fflush(stdout);
		}
	}
	is_sound();
	puts("sound");
	return 0;
}
