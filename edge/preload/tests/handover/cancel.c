/*
 * Threads that are cancelled in calls that wait: each ends there, and what it waited for works as before.
 *
 * Each round makes a connection, has a thread wait on it in one way, cancels that thread after another
 * while, and then sends and receives on the connection both ways and waits for it in other ways.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *doing = "start";

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	fprintf(stderr, "%s, line %d: %s: %s\n", doing, line, what, strerror(errno));
	_exit(1);
}

static int listener, client, server, other, watch;
static char block[1 << 16];

static void by_recv(void) { recv(server, block, sizeof block, 0); }
static void by_read(void) { read(server, block, sizeof block); }
static void by_recvmsg(void) {
	struct iovec part = { block, sizeof block };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	recvmsg(server, &message, 0);
}
static void by_send(void) {
	for (;;) CHECK(send(client, block, sizeof block, 0) > 0);
}
static void by_write(void) {
	for (;;) CHECK(write(client, block, sizeof block) > 0);
}
static void by_accept(void) { accept(listener, NULL, NULL); }
static void by_poll(void) {
	struct pollfd fd = { server, POLLIN, 0 };
	poll(&fd, 1, -1);
}
static void by_poll_two(void) {
	struct pollfd fds[] = { { server, POLLIN, 0 }, { other, POLLIN, 0 } };
	poll(fds, 2, -1);
}
static void by_select(void) {
	fd_set set;
	FD_ZERO(&set);
	FD_SET(server, &set);
	select(server + 1, &set, NULL, NULL, NULL);
}
static void by_epoll(void) {
	struct epoll_event events[8];
	epoll_wait(watch, events, 8, -1);
}
static void by_datagram(void) { recvfrom(other, block, sizeof block, 0, NULL, NULL); }

static const struct { const char *name; void (*call)(void); int fills; } WAYS[] = {
	{ "recv", by_recv }, { "read", by_read }, { "recvmsg", by_recvmsg }, { "send", by_send, 1 },
	{ "write", by_write, 1 }, { "accept", by_accept }, { "poll", by_poll }, { "poll of two", by_poll_two },
	{ "select", by_select }, { "epoll_wait", by_epoll }, { "recvfrom", by_datagram },
};

static sem_t ready, cleaned;

static void clean(void *unused) { sem_post(&cleaned); }

static void *waits(void *way) {
	pthread_cleanup_push(clean, NULL);
	sem_post(&ready);
	WAYS[(intptr_t)way].call();
	pthread_cleanup_pop(0);
	return NULL;
}

/* One byte each way, so that both ends know what the other is. */
static void exchange(void) {
	char byte = 'x';
	for (int i = 0; i < 3; i++) {
		CHECK(send(client, &byte, 1, 0) == 1 && recv(server, &byte, 1, 0) == 1);
		CHECK(send(server, &byte, 1, 0) == 1 && recv(client, &byte, 1, 0) == 1);
	}
}

static void take(int fd, size_t count) {
	while (count) {
		ssize_t got = recv(fd, block, count < sizeof block ? count : sizeof block, 0);
		CHECK(got > 0);
		count -= got;
	}
}

static void round_of(int way, int after_us) {
	struct sockaddr_in address;
	socklen_t len = sizeof address;
	CHECK(!getsockname(listener, (struct sockaddr *)&address, &len));
	CHECK((client = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(!connect(client, (struct sockaddr *)&address, len));
	CHECK((server = accept(listener, NULL, NULL)) >= 0);
	CHECK((other = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	CHECK((watch = epoll_create1(0)) >= 0);
	exchange();
	struct epoll_event event = { EPOLLIN, { .u64 = 7 } }, events[8];
	CHECK(!epoll_ctl(watch, EPOLL_CTL_ADD, server, &event));

	pthread_t thread;
	void *ended;
	CHECK(!pthread_create(&thread, NULL, waits, (void *)(intptr_t)way));
	CHECK(!sem_wait(&ready));
	usleep(after_us);
	CHECK(!pthread_cancel(thread));
	CHECK(!pthread_join(thread, &ended));
	CHECK(ended == PTHREAD_CANCELED);
	CHECK(!sem_trywait(&cleaned));

	if (WAYS[way].fills) {
		/* Whatever it has sent is there, and nothing but that. */
		CHECK(!shutdown(client, SHUT_WR));
		for (ssize_t got; (got = recv(server, block, sizeof block, 0));) CHECK(got > 0);
	} else {
		char byte = 'y';
		CHECK(send(client, &byte, 1, 0) == 1);
		CHECK(epoll_wait(watch, events, 8, -1) == 1 && events[0].data.u64 == 7);
		struct pollfd fd = { server, POLLIN, 0 };
		CHECK(poll(&fd, 1, -1) == 1 && fd.revents == POLLIN);
		CHECK(recv(server, &byte, 1, 0) == 1 && byte == 'y');
		CHECK(epoll_wait(watch, events, 8, 0) == 0);
		exchange();
		CHECK(send(client, block, 50000, 0) == 50000);
		take(server, 50000);
	}
	CHECK(!close(watch) && !close(client) && !close(server) && !close(other));
}

int main(void) {
	struct sockaddr_in address = { .sin_family = AF_INET };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	alarm(100);
	CHECK(!sem_init(&ready, 0, 0) && !sem_init(&cleaned, 0, 0));
	CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(!bind(listener, (struct sockaddr *)&address, sizeof address) && !listen(listener, 8));
	static const int after_us[] = { 0, 30, 300, 10000, 60000, 300000 };
	for (unsigned way = 0; way < sizeof WAYS / sizeof *WAYS; way++) {
		doing = WAYS[way].name;
		for (unsigned i = 0; i < sizeof after_us / sizeof *after_us; i++) round_of(way, after_us[i]);
	}
	puts("right");
	return 0;
}
