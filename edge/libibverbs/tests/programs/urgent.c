/* Two processes in the order of ib_send_lat: each waits for the completion of its request, in a queue of its own, before it looks
 * for the answer. With an argument, the child answers nothing. Now and then the child stops, with all its threads, as soon as it has
 * a message: the acknowledgement must have left before. Prints in how many of TRIES it had. */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 500
#define TRIES 10
#define LOOKS 100000

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

static char bytes[64];
static struct ibv_cq *sends, *receives;
static struct ibv_qp *qp;
static struct ibv_sge piece;
static int other;

static void swap(void *mine, void *theirs, size_t length)
{
	MUST(write(other, mine, length) == (ssize_t)length && read(other, theirs, length) == (ssize_t)length);
}

static void connect_it(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	MUST(list && *list && (context = ibv_open_device(*list)) && (pd = ibv_alloc_pd(context)));
	MUST(sends = ibv_create_cq(context, 64, NULL, NULL, 0));
	MUST(receives = ibv_create_cq(context, 64, NULL, NULL, 0));
	MUST(mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE));
	piece = (struct ibv_sge){(uintptr_t)bytes, sizeof bytes, mr->lkey};
	struct ibv_qp_init_attr init = {.send_cq = sends, .recv_cq = receives, .cap = {16, 16, 1, 1, 64}, .qp_type = IBV_QPT_RC};
	MUST(qp = ibv_create_qp(pd, &init));
	uint32_t number;
	swap(&qp->qp_num, &number, sizeof number);
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = number, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}}};
	MUST(!ibv_query_gid(context, 1, 1, &to.ah_attr.grh.dgid));
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

static void receive(void)
{
	struct ibv_recv_wr wr = {.sg_list = &piece, .num_sge = 1}, *bad;
	MUST(!ibv_post_recv(qp, &wr, &bad));
}

static void post(void)
{
	struct ibv_send_wr wr = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}, *bad;
	MUST(!ibv_post_send(qp, &wr, &bad));
}

/* Looks so many times, or without end. */
static int look(struct ibv_cq *cq, int times)
{
	struct ibv_wc wc;
	for (int i = 0; times == 0 || i < times; i++) {
		int found = ibv_poll_cq(cq, 1, &wc);
		MUST(found == 0 || (found == 1 && wc.status == IBV_WC_SUCCESS));
		if (found)
			return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	(void)argv;
	int pair[2], in_time = 0, answers = argc == 1;
	char byte = 0;
	MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pid_t child = fork();
	MUST(child >= 0);
	other = pair[child > 0];
	close(pair[child == 0]);
	connect_it();
	for (int i = 0; i < 4; i++)
		receive();
	swap(&byte, &byte, 1);
	for (int round = 1; round <= TRIES * ROUNDS; round++) {
		int status, stops = round % ROUNDS == 0;
		if (child) {
			post();
			if (stops) {
				MUST(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
				int is_there = look(sends, LOOKS);
				in_time += is_there;
				MUST(!kill(child, SIGCONT));
				if (!is_there)
					look(sends, 0);
			} else {
				look(sends, 0);
			}
		}
		if (child && !answers)
			continue;
		look(receives, 0);
		if (!child && stops)
			raise(SIGSTOP);
		receive();
		if (!child && answers) {
			post();
			look(sends, 0);
		}
	}
	swap(&byte, &byte, 1);
	if (child) {
		int status;
		printf("%d of %d\n", in_time, TRIES);
		MUST(waitpid(child, &status, 0) == child && status == 0);
	}
	return 0;
}
