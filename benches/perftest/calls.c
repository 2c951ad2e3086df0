/* What `adverb bench` and perftest measure, between two processes, by the calls of either: `benches/perftest/run` sets each order
 * of calls beside what makes them: `as-bench` beside `adverb bench`, `as-perftest` beside perftest.
 *
 * send-lat: a ping-pong. `adverb bench` posts its answer at once, and the next receive after it; one queue takes all
 * completions. ib_send_lat posts the next receive before it answers, and waits for the completion of each request, in a queue
 * of its own, before it looks for the message.
 *
 * read-lat: one READ at a time. send-bw, write-bw, read-bw: as many requests as the queue has room for. The server of
 * `adverb bench` polls meanwhile, and posts the receives that were used in one call. ib_send_bw posts each in a call of its own; the
 * servers of the others wait for their clients at a socket, and leave the rest to their devices. The client of ib_send_bw goes
 * round a page of short messages, and divides four times for each request, to know its place and whether it is signaled: that
 * takes a good part of the time of a call. perftest's packets have a hop limit of their own, which a control message of the socket carries.
 *
 * Prints nanoseconds: of half a round trip and of a READ the median, of a stream's requests the average. Arguments: the order,
 * the operation, bytes (as many as are at most 64 are inline, but in a READ), how many times, and the two processors. */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RECEIVES 512
#define INLINE_MAX 64
#define BYTES_MAX (1 << 20)
#define DEPTH 128
#define SIGNAL 100
#define READS 128
#define POLLED_MAX 32
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

static char memory[2][BYTES_MAX] __attribute__((aligned(4096)));
static struct ibv_cq *sends, *receives;
static struct ibv_qp *qp;
static struct ibv_sge incoming, outgoing;
static enum ibv_wr_opcode opcode;
static uint32_t remote_key;
/* Requests that have no completion yet, of those that will have one; completions that a poll of a stream takes at most. */
static int other, unfinished, polled_max;

/* Both processes are here. */
static void meet(void)
{
	char byte = 0;
	MUST(write(other, &byte, 1) == 1 && read(other, &byte, 1) == 1);
}

static void open_device(int two_queues, uint32_t bytes)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list);
	struct ibv_context *context = ibv_open_device(*list);
	MUST(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	MUST(pd && (receives = ibv_create_cq(context, 4 * RECEIVES, NULL, NULL, 0)));
	MUST(sends = two_queues ? ibv_create_cq(context, 4 * RECEIVES, NULL, NULL, 0) : receives);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, ACCESS);
	MUST(mr);
	incoming = (struct ibv_sge){(uintptr_t)memory[0], bytes, mr->lkey};
	outgoing = (struct ibv_sge){(uintptr_t)memory[1], bytes, mr->lkey};
	MUST(write(other, &mr->rkey, sizeof remote_key) == sizeof remote_key);
	MUST(read(other, &remote_key, sizeof remote_key) == sizeof remote_key);
	struct ibv_qp_init_attr attr = {.send_cq = sends, .recv_cq = receives, .cap = {DEPTH, 2 * RECEIVES, 1, 1, INLINE_MAX},
		.qp_type = IBV_QPT_RC};
	MUST(qp = ibv_create_qp(pd, &attr));
}

static void connect_it(int hop_limit)
{
	uint32_t number = qp->qp_num;
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	MUST(write(other, &number, sizeof number) == sizeof number && read(other, &number, sizeof number) == sizeof number);
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = number, .min_rnr_timer = 12,
		.max_dest_rd_atomic = READS,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = hop_limit}}};
	MUST(!ibv_query_gid(qp->context, 1, 1, &to.ah_attr.grh.dgid));
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = READS};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Posts at most POLLED_MAX receives in one call. */
static void receive(int count)
{
	struct ibv_recv_wr list[POLLED_MAX], *bad;
	for (int i = 0; i < count; i++)
		list[i] = (struct ibv_recv_wr){.sg_list = &incoming, .num_sge = 1, .next = i + 1 < count ? &list[i + 1] : NULL};
	MUST(!count || !ibv_post_recv(qp, list, &bad));
}

static void post(int signaled)
{
	/* The other process is a copy of this one: its memory is at the same places. */
	int reads = opcode == IBV_WR_RDMA_READ;
	struct ibv_sge *here = reads ? &incoming : &outgoing;
	struct ibv_send_wr wr = {.sg_list = here, .num_sge = 1, .opcode = opcode,
		.wr.rdma = {(uintptr_t)memory[reads], remote_key}}, *bad;
	wr.send_flags = (signaled ? IBV_SEND_SIGNALED : 0) | (!reads && here->length <= INLINE_MAX ? IBV_SEND_INLINE : 0);
	MUST(!ibv_post_send(qp, &wr, &bad));
	unfinished += signaled;
}

/* Takes completions; says how many messages there were. */
static int poll_once(struct ibv_cq *cq, int most)
{
	struct ibv_wc wc[POLLED_MAX];
	int messages = 0, found = ibv_poll_cq(cq, most, wc);
	MUST(found >= 0);
	for (int i = 0; i < found; i++) {
		MUST(wc[i].status == IBV_WC_SUCCESS);
		messages += wc[i].opcode == IBV_WC_RECV;
		unfinished -= wc[i].opcode != IBV_WC_RECV;
	}
	return messages;
}

static void send_as_bench(void)
{
	post(1);
	receive(1);
}

static void wait_as_bench(void)
{
	while (!poll_once(receives, POLLED_MAX))
		;
}

static void send_as_perftest(void)
{
	post(1);
	while (unfinished)
		poll_once(sends, 1);
}

static void wait_as_perftest(void)
{
	while (!poll_once(receives, 1))
		;
	receive(1);
}

static void read_one(void)
{
	post(1);
	while (unfinished)
		poll_once(sends, polled_max);
}

/* Each completion is of SIGNAL requests. */
static void stream(uint64_t count)
{
	uint64_t posted = 0;
	while (posted < count || unfinished) {
		while (posted < count && posted - (posted / SIGNAL - unfinished) * SIGNAL < DEPTH)
			post(++posted % SIGNAL == 0);
		poll_once(sends, polled_max);
	}
}

/* What ib_send_bw divides by: numbers that its compiler does not know. */
static volatile int signal_every = SIGNAL, round_bytes = 4096, stride = 64;

/* The same, with the arithmetic of ib_send_bw. */
static void stream_as_perftest(uint64_t count)
{
	uint64_t posted = 0, start = outgoing.addr;
	int signaled = 0, goes_round = outgoing.length <= (uint32_t)round_bytes / 2;
	while (posted < count || unfinished) {
		while (posted < count && posted - (posted / SIGNAL - unfinished) * SIGNAL < DEPTH) {
			if (posted % signal_every == 0)
				signaled = 0;
			post(signaled);
			if (goes_round) {
				outgoing.addr += stride;
				if ((posted + 1) % (round_bytes / stride) == 0)
					outgoing.addr = start;
			}
			posted++;
			if (posted % signal_every == (uint64_t)signal_every - 1)
				signaled = 1;
		}
		poll_once(sends, polled_max);
	}
	outgoing.addr = start;
}

/* Polls until the other process says something. */
static void serve(int as_perftest)
{
	struct pollfd at_end = {.fd = other, .events = POLLIN};
	do {
		for (int i = 0; i < 1024; i++) {
			int used = poll_once(receives, polled_max);
			if (!as_perftest)
				receive(used);
			else
				while (used--)
					receive(1);
		}
	} while (!poll(&at_end, 1, 0));
}

static double now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	double one = *(const double *)a, two = *(const double *)b;
	return (one > two) - (one < two);
}

int main(int argc, char **argv)
{
	MUST(argc == 7);
	int as_perftest = !strcmp(argv[1], "as-perftest"), rounds = atoi(argv[4]), pair[2];
	int streams = !!strstr(argv[2], "-bw"), reads = !strncmp(argv[2], "read", 4), sends_it = !strncmp(argv[2], "send", 4);
	int turns = sends_it && !streams;
	uint32_t bytes = atoi(argv[3]);
	opcode = reads ? IBV_WR_RDMA_READ : sends_it ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
	polled_max = !as_perftest ? POLLED_MAX : streams ? 16 : 1;
	MUST(rounds > 0 && rounds % SIGNAL == 0 && bytes <= BYTES_MAX && !socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	double *times = calloc(rounds + 1, sizeof *times);
	MUST(times);
	pid_t child = fork();
	MUST(child >= 0);
	int is_client = child > 0;
	other = pair[is_client];
	close(pair[!is_client]);
	cpu_set_t cpu;
	CPU_ZERO(&cpu);
	CPU_SET(atoi(argv[is_client ? 5 : 6]), &cpu);
	MUST(!sched_setaffinity(0, sizeof cpu, &cpu));
	open_device(as_perftest, bytes);
	connect_it(as_perftest ? 255 : 64);
	for (int i = 0; i < RECEIVES; i++)
		receive(1);
	meet();
	void (*send)(void) = as_perftest ? send_as_perftest : send_as_bench;
	void (*wait_for_it)(void) = as_perftest ? wait_as_perftest : wait_as_bench;
	for (int round = 0; round < rounds && turns; round++) {
		if (is_client) {
			times[round] = now_ns();
			send();
		}
		wait_for_it();
		if (!is_client)
			send();
	}
	for (int round = 0; round < rounds && !turns && !streams && is_client; round++) {
		times[round] = now_ns();
		read_one();
	}
	if (streams && is_client) {
		void (*run)(uint64_t) = as_perftest && sends_it ? stream_as_perftest : stream;
		run(rounds / SIGNAL / 8 * SIGNAL); /* Warms up. */
		times[0] = now_ns();
		run(rounds);
	}
	if (!turns && !is_client && (sends_it || !as_perftest))
		serve(as_perftest);
	times[rounds] = now_ns();
	while (unfinished)
		poll_once(sends, 1);
	meet();
	if (!is_client)
		return 0;
	if (streams)
		return printf("%.1f\n", (times[rounds] - times[0]) / rounds) < 0;
	for (int round = 0; round < rounds; round++)
		times[round] = times[round + 1] - times[round];
	qsort(times, rounds, sizeof *times, by_size);
	printf("%.0f\n", times[rounds / 2] / (turns ? 2 : 1));
	int status;
	MUST(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
