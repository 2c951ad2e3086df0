/* What the programs of this directory share: sockets at both ends, and how to fail. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                            \
	do {                                                                                       \
		if (!(what)) {                                                                         \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno);       \
			exit(1);                                                                           \
		}                                                                                      \
	} while (0)

/* A loopback address, with no port yet. */
static inline socklen_t loopback(int domain, struct sockaddr_storage *at) {
	memset(at, 0, sizeof *at);
	at->ss_family = domain;
	if (domain == AF_INET) {
		((struct sockaddr_in *)at)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		return sizeof(struct sockaddr_in);
	}
	((struct sockaddr_in6 *)at)->sin6_addr = in6addr_loopback;
	return sizeof(struct sockaddr_in6);
}

/* Binds a socket to a port of its own, and says where it is. */
static inline int bound(int domain, int kind, struct sockaddr_storage *at) {
	socklen_t len = loopback(domain, at);
	int fd = socket(domain, kind, 0);
	CHECK(fd >= 0);
	CHECK(!bind(fd, (struct sockaddr *)at, len));
	len = sizeof *at;
	CHECK(!getsockname(fd, (struct sockaddr *)at, &len));
	return fd;
}

static inline socklen_t length(const struct sockaddr_storage *at) {
	return at->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* Two UDP sockets that are connected to one another. */
static inline void mail(int domain, int ends[2]) {
	struct sockaddr_storage a, b;
	ends[0] = bound(domain, SOCK_DGRAM, &a);
	ends[1] = bound(domain, SOCK_DGRAM, &b);
	CHECK(!connect(ends[0], (struct sockaddr *)&b, length(&b)));
	CHECK(!connect(ends[1], (struct sockaddr *)&a, length(&a)));
}

/* A TCP connection. */
static inline void stream(int domain, int ends[2]) {
	struct sockaddr_storage at;
	int listener = bound(domain, SOCK_STREAM, &at);
	CHECK(!listen(listener, 1));
	ends[0] = socket(domain, SOCK_STREAM, 0);
	CHECK(!connect(ends[0], (struct sockaddr *)&at, length(&at)));
	CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
	close(listener);
}

/* Lets the two find each other's shared memory. */
static inline void warm_up(const int ends[2]) {
	char byte = 'w';
	for (int round = 0; round < 64; round++) {
		int from = round & 1;
		CHECK(send(ends[from], &byte, 1, 0) == 1);
		CHECK(recv(ends[!from], &byte, 1, 0) == 1);
	}
}

/* Whether the kernel has something for a socket, asked behind the library's back. */
static inline int in_kernel(int fd) {
	struct pollfd polled = { .fd = fd, .events = POLLIN };
	return syscall(SYS_poll, &polled, 1, 0) > 0;
}

static inline uint64_t now_ns(clockid_t clock) {
	struct timespec time;
	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

/* What the kernel holds for a socket, asked behind the library's back: bytes of a stream, the room that datagrams take. */
static inline long queued(int fd) {
	int kind, bytes;
	uint32_t room[SK_MEMINFO_VARS];
	socklen_t kind_len = sizeof kind, room_len = sizeof room;
	CHECK(!syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &kind, &kind_len));
	if (kind == SOCK_STREAM) {
		CHECK(!syscall(SYS_ioctl, fd, FIONREAD, &bytes));
		return bytes;
	}
	CHECK(!syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_MEMINFO, room, &room_len));
	return room[SK_MEMINFO_RMEM_ALLOC];
}

/* Sends by the kernel, and waits until what was sent is queued at the other end: a busy machine takes its time over that. */
static inline void send_by_kernel(const int ends[2], const void *bytes, size_t len, int flags) {
	long before = queued(ends[1]);
	CHECK(send(ends[0], bytes, len, flags) == (ssize_t)len);
	for (uint64_t start = now_ns(CLOCK_MONOTONIC); queued(ends[1]) <= before; usleep(100))
		CHECK(now_ns(CLOCK_MONOTONIC) - start < 20000000000ull);
}
