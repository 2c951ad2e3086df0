/* Two processes send each other less than the kernel's queues hold, and more than rings do, before either reads. Each end sends
 * in a way of its own: by calls that block, without a time limit or with one, or by calls that do not, after a wait by poll,
 * select or epoll, at levels or at edges, or without any. Every byte has to arrive.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "line %d: %s: %m\n", __LINE__, #what); _exit(1); } } while (0)
#include "ends.h"

enum { BYTES = 700000, TURNS = 100 };

static unsigned char byte_of(int who, long at) {
	return at * 7 + (at >> 9) + who * 101;
}

/* Waits until there may be room, in this way. */
static void await(int fd, const char *way) {
	static int epfd = -1;
	if (!strcmp(way, "poll")) {
		struct pollfd each = { .fd = fd, .events = POLLOUT };
		CHECK(poll(&each, 1, -1) == 1);
	} else if (!strcmp(way, "select")) {
		fd_set set;
		FD_ZERO(&set);
		FD_SET(fd, &set);
		CHECK(select(fd + 1, NULL, &set, NULL, NULL) == 1);
	} else if (!strcmp(way, "epoll")) {
		struct epoll_event event = { .events = EPOLLOUT };
		int once = epoll_create1(0);
		CHECK(once >= 0 && !epoll_ctl(once, EPOLL_CTL_ADD, fd, &event));
		CHECK(epoll_wait(once, &event, 1, -1) == 1);
		CHECK(!close(once));
	} else if (!strcmp(way, "edge")) {
		struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET };
		if (epfd < 0) {
			CHECK((epfd = epoll_create1(0)) >= 0 && !epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event));
		}
		do CHECK(epoll_wait(epfd, &event, 1, -1) == 1); while (!(event.events & EPOLLOUT));
	} else if (!strcmp(way, "look")) {
		struct pollfd each = { .fd = fd, .events = POLLOUT };
		while (!poll(&each, 1, 0)) continue;
	} else {
		CHECK(!strcmp(way, "busy"));
	}
}

static void send_all(int fd, int who, const char *way) {
	static unsigned char bytes[BYTES];
	int flags = strcmp(way, "block") && strcmp(way, "limit") ? MSG_DONTWAIT : 0;
	for (long at = 0; at < BYTES; at++) bytes[at] = byte_of(who, at);
	for (long at = 0; at < BYTES;) {
		ssize_t sent = send(fd, bytes + at, BYTES - at, flags);
		if (sent < 0 && flags && errno == EAGAIN) {
			await(fd, way);
			continue;
		}
		CHECK(sent > 0);
		at += sent;
	}
}

static void receive_all(int fd, int who) {
	unsigned char bytes[50000];
	for (long at = 0; at < BYTES;) {
		size_t left = BYTES - at;
		ssize_t got = recv(fd, bytes, left < sizeof bytes ? left : sizeof bytes, 0);
		CHECK(got > 0);
		for (long i = 0; i < got; i++) CHECK(bytes[i] == byte_of(who, at + i));
		at += got;
	}
}

static void talk(int fd, int first) {
	char byte = 'x';
	for (int i = 0; i < TURNS; i++) {
		if (first || i) CHECK(send(fd, &byte, 1, 0) == 1);
		CHECK(recv(fd, &byte, 1, 0) == 1);
	}
	if (!first) CHECK(send(fd, &byte, 1, 0) == 1);
}

int main(int count, char **words) {
	CHECK(count == 3);
	int listening = bound(SOCK_STREAM), status;
	CHECK(!listen(listening, 4));
	pid_t child = fork();
	CHECK(child >= 0);
	int who = !child, fd;
	if (who) {
		CHECK((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
		joins(fd, listening);
	} else {
		CHECK((fd = accept(listening, NULL, NULL)) >= 0);
	}
	const char *way = words[1 + who];
	if (!strcmp(way, "limit")) {
		struct timeval limit = { .tv_sec = 60 };
		CHECK(!setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
	}
	alarm(100);
	/* Again, once the connection is the kernel's. */
	for (int round = 0; round < 3; round++) {
		talk(fd, who);
		send_all(fd, who, way);
		receive_all(fd, !who);
	}
	CHECK(!close(fd));
	CHECK(!child || (waitpid(child, &status, 0) == child && status == 0));
	return 0;
}
