/* A queue pair that is connected with itself, and a sched_yield of the program's own: a call in which a poll lets other threads
 * run sends a message. That poll must answer with it, by both interfaces, whichever of its calls it is: the first comes after
 * hundreds of empty polls, and the library lets others run at two depths. The library's own thread may have the message in hand at
 * that moment, but not each time that the same call is tried. */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

/* Calls of the outer depth, one for each 32 empty polls, until those of the inner one come between them: it counts 2,048. */
#define YIELDS 80
#define TRIES 6

static char bytes[64];
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *sends;
static struct ibv_qp *qp;
static struct ibv_sge piece;
static pthread_t program;
static int yields_left, sent;

int sched_yield(void)
{
	if (!pthread_equal(pthread_self(), program) || !yields_left || --yields_left)
		return syscall(SYS_sched_yield);
	struct ibv_send_wr wr = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	MUST(!ibv_post_send(qp, &wr, &bad));
	sent = 1;
	return 0;
}

/* The next message leaves in the n-th call from here on. */
static void expect(int n)
{
	struct ibv_recv_wr wr = {.wr_id = 7, .sg_list = &piece, .num_sge = 1}, *bad;
	MUST(!ibv_post_recv(qp, &wr, &bad));
	sent = 0;
	yields_left = n;
}

static void acknowledged(void)
{
	struct ibv_wc wc;
	while (ibv_poll_cq(sends, 1, &wc) == 0)
		;
	MUST(wc.status == IBV_WC_SUCCESS);
}

static void connect_to_itself(struct ibv_cq *receives)
{
	struct ibv_qp_init_attr init = {.send_cq = sends, .recv_cq = receives, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	MUST(qp = ibv_create_qp(pd, &init));
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = qp->qp_num, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}}};
	MUST(!ibv_query_gid(context, 1, 1, &to.ah_attr.grh.dgid));
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_mr *mr;
	MUST(list && *list && (context = ibv_open_device(*list)) && (pd = ibv_alloc_pd(context)));
	MUST(sends = ibv_create_cq(context, 16, NULL, NULL, 0));
	MUST(mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE));
	piece = (struct ibv_sge){(uintptr_t)bytes, sizeof bytes, mr->lkey};
	program = pthread_self();

	struct ibv_cq *plain = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_wc wc;
	int found;
	MUST(plain);
	connect_to_itself(plain);
	for (int n = 1, tries = 1; n <= YIELDS; n++, tries = 1) {
		do {
			expect(n);
			do
				found = ibv_poll_cq(plain, 1, &wc);
			while (!found && !sent);
			MUST(sent && (found || tries < TRIES));
			int late = !found;
			while (!found)
				found = ibv_poll_cq(plain, 1, &wc);
			MUST(found == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 7);
			acknowledged();
			tries = late ? tries + 1 : 0;
		} while (tries);
	}

	struct ibv_cq_init_attr_ex attr = {.cqe = 16};
	struct ibv_cq_ex *extended = ibv_create_cq_ex(context, &attr);
	MUST(extended);
	connect_to_itself(ibv_cq_ex_to_cq(extended));
	struct ibv_poll_cq_attr none = {0};
	for (int n = 1, tries = 1; n <= YIELDS; n++, tries = 1) {
		do {
			expect(n);
			do
				found = ibv_start_poll(extended, &none);
			while (found == ENOENT && !sent);
			MUST(sent && (!found || tries < TRIES));
			int late = found != 0;
			while (found == ENOENT)
				found = ibv_start_poll(extended, &none);
			MUST(!found && extended->status == IBV_WC_SUCCESS && extended->wr_id == 7);
			ibv_end_poll(extended);
			acknowledged();
			tries = late ? tries + 1 : 0;
		} while (tries);
	}
	puts("both polls answer with what came while they let others run");
	return 0;
}
