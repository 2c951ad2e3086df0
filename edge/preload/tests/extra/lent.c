/* Receiving, as far as the kernel's calls are the measure: errors, ends, addresses, time limits and signals are the same
   whether bytes are copied or lent.
   lent recv|zcopy|force */
#include "ends.h"
#include <mellanox/vma_extra.h>

static struct vma_api_t *api;
static enum { RECV, ZCOPY, FORCE } how;

/* Receives by one call or the other; the bytes are in `into` then. */
static ssize_t take(int fd, void *into, size_t len, int flags, struct sockaddr_storage *from, socklen_t *from_len) {
	union { struct vma_packets_t said; char bytes[128]; } packets;
	if (how == RECV) return recvfrom(fd, into, len, flags, (struct sockaddr *)from, from_len);
	flags |= how == FORCE ? MSG_VMA_ZCOPY_FORCE : 0;
	int got = api->recvfrom_zcopy(fd, &packets, sizeof packets, &flags, (struct sockaddr *)from, from_len);
	if (got > 0 && !(flags & MSG_VMA_ZCOPY)) memcpy(into, packets.bytes, got);
	if (got > 0 && flags & MSG_VMA_ZCOPY) {
		size_t at = 0;
		for (size_t piece = 0; piece < packets.said.pkts->sz_iov; piece++) {
			struct iovec part;
			memcpy(&part, &packets.said.pkts->iov[piece], sizeof part);
			memcpy((char *)into + at, part.iov_base, part.iov_len);
			at += part.iov_len;
		}
		CHECK(at == (size_t)got && !api->free_packets(fd, packets.said.pkts, 1));
	}
	return got;
}

static char bytes[70000];

static int fails(int fd, int flags, int error) { return take(fd, bytes, sizeof bytes, flags, NULL, NULL) < 0 && errno == error; }

static void on_alarm(int signal) { (void)signal; }

/* From then on, as often; 0: no more. One signal may come before the call that it is to interrupt. */
static void ring_every(int us) {
	struct itimerval timer = { .it_value = { .tv_usec = us }, .it_interval = { .tv_usec = us } };
	CHECK(!setitimer(ITIMER_REAL, &timer, NULL));
}

static void limit(int fd, int us) {
	struct timeval time = { .tv_usec = us };
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
}

/* Waits that are over by a time limit, by a flag or two, or by a signal. */
static void waits(int fd) {
	uint64_t start = now_ns(CLOCK_MONOTONIC);
	limit(fd, 20000);
	CHECK(fails(fd, 0, EAGAIN) && now_ns(CLOCK_MONOTONIC) - start >= 15000000);
	CHECK(fails(fd, MSG_DONTWAIT, EAGAIN));
	limit(fd, 0);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	CHECK(fails(fd, 0, EAGAIN));
	fcntl(fd, F_SETFL, 0);
	ring_every(5000);
	CHECK(fails(fd, 0, EINTR));
	ring_every(0);
}

static void try_mail(int domain) {
	struct sockaddr_storage at, names[3], from;
	int to = bound(domain, SOCK_DGRAM, &at), senders[3];
	for (int which = 0; which < 3; which++) senders[which] = bound(domain, SOCK_DGRAM, &names[which]);
	for (int round = 0; round < 200; round++) {
		int which = round * 7 % 3, len = round * 97 % 3000;
		socklen_t from_len = sizeof from;
		memset(bytes, round, len);
		CHECK(sendto(senders[which], bytes, len, 0, (struct sockaddr *)&at, length(&at)) == len);
		memset(&from, 0xee, sizeof from), memset(bytes, 0xee, len + 1);
		CHECK(take(to, bytes, sizeof bytes, 0, &from, &from_len) == len);
		CHECK(from_len == length(&names[which]) && !memcmp(&from, &names[which], from_len));
		for (int byte = 0; byte < len; byte++) CHECK(bytes[byte] == (char)round);
		if (round % 20) continue;
		/* An answer, so that each knows the other. */
		CHECK(sendto(to, bytes, 1, 0, (struct sockaddr *)&names[which], from_len) == 1 && recv(senders[which], bytes, 1, 0) == 1);
	}
	waits(to);
	for (int which = 0; which < 3; which++) close(senders[which]);
	CHECK(!connect(to, (struct sockaddr *)names, length(names)) && send(to, "x", 1, 0) == 1);
	CHECK(fails(to, 0, ECONNREFUSED));
	close(to);
	CHECK(fails(to, 0, EBADF) && fails(to, MSG_DONTWAIT, EBADF));
}

static void try_stream(int domain, int is_warm) {
	enum { SHUT, CLOSED, RESET, SHUT_BOTH, ENDS };
	for (int end = 0; end < ENDS; end++) {
		struct linger reset = { 1, 0 };
		int ends[2];
		stream(domain, ends);
		if (is_warm) warm_up(ends);
		waits(ends[1]);
		CHECK(send(ends[0], "hello", 5, 0) == 5);
		CHECK(take(ends[1], bytes, sizeof bytes, 0, NULL, NULL) == 5 && !memcmp(bytes, "hello", 5));
		CHECK(send(ends[0], "rest", 4, 0) == 4);
		if (how != FORCE) CHECK(take(ends[1], bytes, 128, MSG_PEEK, NULL, NULL) == 4 && !memcmp(bytes, "rest", 4));
		if (end == SHUT) CHECK(!shutdown(ends[0], SHUT_WR));
		if (end == SHUT_BOTH) CHECK(!shutdown(ends[0], SHUT_RDWR));
		if (end == RESET) CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &reset, sizeof reset));
		if (end == RESET || end == CLOSED) close(ends[0]);
		ssize_t got = take(ends[1], bytes, sizeof bytes, 0, NULL, NULL);
		/* A reset may overtake what was sent before it. */
		if (end == RESET) CHECK(got == 4 ? fails(ends[1], 0, ECONNRESET) : got < 0 && errno == ECONNRESET);
		else CHECK(got == 4 && !memcmp(bytes, "rest", 4));
		CHECK(take(ends[1], bytes, sizeof bytes, 0, NULL, NULL) == 0);
		CHECK(take(ends[1], bytes, sizeof bytes, MSG_DONTWAIT, NULL, NULL) == 0);
		close(ends[1]);
		if (end == SHUT || end == SHUT_BOTH) close(ends[0]);
	}
}

int main(int count, char **arguments) {
	CHECK(count > 1);
	how = !strcmp(arguments[1], "recv") ? RECV : !strcmp(arguments[1], "zcopy") ? ZCOPY : FORCE;
	api = vma_get_api();
	CHECK(api || how == RECV);
	struct sigaction action = { .sa_handler = on_alarm };
	CHECK(!sigaction(SIGALRM, &action, NULL));
	for (int six = 0; six < 2; six++) {
		int domain = six ? AF_INET6 : AF_INET, fd = socket(domain, SOCK_STREAM, 0);
		CHECK(fails(fd, 0, ENOTCONN));
		CHECK(!listen(fd, 1) && fails(fd, 0, ENOTCONN));
		close(fd);
		try_mail(domain), try_stream(domain, 0), try_stream(domain, 1);
	}
	return 0;
}
