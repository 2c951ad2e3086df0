/* What the order of calls of ib_send_lat costs at least, beside that of `adverb bench`: `benches/perftest/run` prints it with the
 * latency of SEND. Prints nanoseconds of half a round trip, by the path:
 *
 * udp: a packet of 64 bytes and its acknowledgement, in one call (UDP_SEGMENT) and taken by one (UDP_GRO), less the packet
 * alone, by the cheapest calls: the kernel's work, between two processes that do nothing else. ib_send_lat's requests each wait for
 * the acknowledgement of the one before, so that one leaves with every answer; where a program answers first, it leaves with
 * every fourth.
 *
 * shm: what stands between a message and its answer besides: a receive is posted, and the completion of the request
 * before is polled. Calls that find all that they need in this process; what the acknowledgement itself costs is not in it.
 *
 * Arguments: the path, the two processors. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/udp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* BTH, 64 bytes and ICRC; BTH, AETH and ICRC. */
#define PACKET_BYTES (12 + 64 + 4)
#define ACK_BYTES (12 + 4 + 4)
#define TRIPS 20000
#define ROUNDS 300
#define CALLS 256

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

static char bytes[65536];
static double times[TRIPS + 1];

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

static double median(int count)
{
	qsort(times, count, sizeof *times, by_size);
	return times[count / 2];
}

static void stay_on(int processor)
{
	cpu_set_t cpu;
	CPU_ZERO(&cpu);
	CPU_SET(processor, &cpu);
	MUST(!sched_setaffinity(0, sizeof cpu, &cpu));
}

static void send_packet(int fd, const struct sockaddr_in *to, int with_ack)
{
	if (!with_ack) {
		MUST(sendto(fd, bytes, PACKET_BYTES, 0, (const struct sockaddr *)to, sizeof *to) == PACKET_BYTES);
		return;
	}
	char control[CMSG_SPACE(sizeof(uint16_t))] = {0};
	struct iovec both = {bytes, PACKET_BYTES + ACK_BYTES};
	struct msghdr message = {.msg_name = (void *)to, .msg_namelen = sizeof *to, .msg_iov = &both, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *segment = CMSG_FIRSTHDR(&message);
	uint16_t packet_bytes = PACKET_BYTES;
	segment->cmsg_level = SOL_UDP;
	segment->cmsg_type = UDP_SEGMENT;
	segment->cmsg_len = CMSG_LEN(sizeof packet_bytes);
	memcpy(CMSG_DATA(segment), &packet_bytes, sizeof packet_bytes);
	MUST(sendmsg(fd, &message, 0) == PACKET_BYTES + ACK_BYTES);
}

static void take_packet(int fd, int with_ack)
{
	int left = PACKET_BYTES + (with_ack ? ACK_BYTES : 0);
	while (left > 0) {
		struct sockaddr_in from;
		socklen_t length = sizeof from;
		char control[64];
		struct iovec all = {bytes, sizeof bytes};
		struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &all, .msg_iovlen = 1,
			.msg_control = control, .msg_controllen = sizeof control};
		ssize_t taken = with_ack ? recvmsg(fd, &message, MSG_DONTWAIT)
			: recvfrom(fd, bytes, sizeof bytes, MSG_DONTWAIT, (struct sockaddr *)&from, &length);
		MUST(taken > 0 || errno == EAGAIN);
		left -= taken > 0 ? taken : 0;
	}
}

static double half_trip(int with_ack, char **processors)
{
	struct sockaddr_in addresses[2];
	int fds[2], ready[2], one = 1, status;
	char word = 0;
	MUST(!pipe(ready));
	for (int i = 0; i < 2; i++) {
		socklen_t length = sizeof addresses[i];
		addresses[i] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		MUST((fds[i] = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
		MUST(!bind(fds[i], (struct sockaddr *)&addresses[i], length));
		MUST(!getsockname(fds[i], (struct sockaddr *)&addresses[i], &length));
		MUST(!with_ack || !setsockopt(fds[i], SOL_UDP, UDP_GRO, &one, sizeof one));
	}
	pid_t child = fork();
	MUST(child >= 0);
	int is_server = child == 0;
	stay_on(atoi(processors[is_server]));
	/* With real-time priority it could not leave this processor once the client spins. */
	MUST(is_server ? write(ready[1], &word, 1) == 1 : read(ready[0], &word, 1) == 1);
	for (int trip = 0; trip < TRIPS; trip++) {
		if (!is_server) {
			times[trip] = now_ns();
			send_packet(fds[0], &addresses[1], with_ack);
		}
		take_packet(fds[is_server], with_ack);
		if (is_server)
			send_packet(fds[1], &addresses[0], with_ack);
	}
	if (is_server)
		exit(0);
	times[TRIPS] = now_ns();
	MUST(waitpid(child, &status, 0) == child && status == 0);
	for (int trip = 0; trip < TRIPS; trip++)
		times[trip] = times[trip + 1] - times[trip];
	return median(TRIPS) / 2;
}

/* A receive that is posted, and a completion that is polled. */
static double two_calls(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *sends, *receives;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	MUST(list && *list && (context = ibv_open_device(*list)) && (pd = ibv_alloc_pd(context)));
	MUST((sends = ibv_create_cq(context, 2 * CALLS, NULL, NULL, 0)) && (receives = ibv_create_cq(context, 2 * CALLS, NULL, NULL, 0)));
	MUST(mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_qp_init_attr attr = {.send_cq = sends, .recv_cq = receives, .cap = {2 * CALLS, 2 * CALLS, 1, 1, 64},
		.qp_type = IBV_QPT_RC};
	MUST(qp = ibv_create_qp(pd, &attr));
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = qp->qp_num, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}}};
	MUST(!ibv_query_gid(context, 1, 1, &to.ah_attr.grh.dgid));
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 17, .retry_cnt = 7, .rnr_retry = 7};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
	struct ibv_sge piece = {(uintptr_t)bytes, 64, mr->lkey};
	struct ibv_recv_wr incoming = {.sg_list = &piece, .num_sge = 1}, *bad_receive;
	struct ibv_send_wr outgoing = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}, *bad;
	struct ibv_wc wc;
	double posts[ROUNDS];
	for (int round = 0; round < ROUNDS; round++) {
		double start = now_ns();
		for (int i = 0; i < CALLS; i++)
			MUST(!ibv_post_recv(qp, &incoming, &bad_receive));
		posts[round] = now_ns() - start;
		for (int i = 0; i < CALLS; i++)
			MUST(!ibv_post_send(qp, &outgoing, &bad));
		for (int found = 0; found < CALLS;)
			found += ibv_poll_cq(receives, 1, &wc);
		for (int i = 0; i < 1000; i++)
			MUST(ibv_poll_cq(receives, 1, &wc) == 0); /* All have ended. */
		start = now_ns();
		for (int i = 0; i < CALLS; i++)
			MUST(ibv_poll_cq(sends, 1, &wc) == 1);
		times[round] = now_ns() - start;
	}
	double poll = median(ROUNDS) / CALLS;
	memcpy(times, posts, sizeof posts);
	return poll + median(ROUNDS) / CALLS;
}

int main(int argc, char **argv)
{
	MUST(argc == 4);
	int over_udp = !strcmp(argv[1], "udp");
	if (!over_udp)
		stay_on(atoi(argv[2]));
	return printf("%.1f\n", over_udp ? half_trip(1, argv + 2) - half_trip(0, argv + 2) : two_calls()) < 0;
}
