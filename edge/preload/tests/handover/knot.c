/* Two processes send each other less than the kernel's queues hold, and more than rings do, before either reads. Each end sends
 * in a way of its own: by calls that block, without a time limit or with one, or by calls that do not, after a wait by poll,
 * select or epoll, at levels or at edges, or without any. Every byte has to arrive.
 *
 * Or the first end does something else for a while, as it may have filled the rings, and reads then: "late" has sent what there
 * was room for, "watch" waits by epoll at edges for something else, and "both" asks poll again and again whether it may read or
 * write.
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

/* ROOM is more than half of what a ring holds, and no more than all. */
enum { BYTES = 700000, TURNS = 100, ROOM = 160000 };

static unsigned char byte_of(int who, long at) {
	return at * 7 + (at >> 9) + who * 101;
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
	} else if (!strcmp(way, "nested")) {
		struct epoll_event event = { .events = EPOLLOUT };
		int inner = epoll_create1(0), outer = epoll_create1(0);
		CHECK(inner >= 0 && !epoll_ctl(inner, EPOLL_CTL_ADD, fd, &event));
		event.events = EPOLLIN;
		CHECK(outer >= 0 && !epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event));
		CHECK(epoll_wait(outer, &event, 1, -1) == 1);
		CHECK(!close(inner) && !close(outer));
	} else if (!strcmp(way, "asked")) {
		struct epoll_event event = { .events = EPOLLOUT };
		int inner = epoll_create1(0);
		CHECK(inner >= 0 && !epoll_ctl(inner, EPOLL_CTL_ADD, fd, &event));
		struct pollfd each = { .fd = inner, .events = POLLIN };
		CHECK(poll(&each, 1, -1) == 1 && !close(inner));
	} else if (!strcmp(way, "look")) {
		struct pollfd each = { .fd = fd, .events = POLLOUT };
		while (!poll(&each, 1, 0)) continue;
	} else {
		CHECK(!strcmp(way, "busy"));
	}
}

/* Sends in part, does something else for a while, and says how much it has sent. */
static long send_some(int fd, const unsigned char *bytes, const char *way) {
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLET };
	int epfd = -1;
	long at = 0, most = strcmp(way, "watch") ? BYTES : ROOM;
	if (!strcmp(way, "watch")) {
		CHECK((epfd = epoll_create1(0)) >= 0 && !epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event));
		CHECK(epoll_wait(epfd, &event, 1, -1) == 1);
	}
	for (ssize_t sent; at < most; at += sent) {
		size_t left = most - at;
		sent = send(fd, bytes + at, left < 5000 ? left : 5000, MSG_DONTWAIT);
		if (sent < 0 && errno == EAGAIN) break;
		CHECK(sent > 0);
	}
	for (int turn = 0; turn < 20; turn++) {
		struct pollfd each = { .fd = fd, .events = POLLIN | POLLOUT };
		if (!strcmp(way, "both")) CHECK(poll(&each, 1, 50) >= 0);
		if (epfd >= 0) CHECK(epoll_wait(epfd, &event, 1, 50) >= 0);
		else usleep(50000);
	}
	CHECK(epfd < 0 || !close(epfd));
	return at;
}

static int is_late(const char *way) {
	return strstr(" late watch both", way) != NULL;
}

static void send_all(int fd, int who, const char *way) {
	static unsigned char bytes[BYTES];
	int flags = strcmp(way, "block") && strcmp(way, "limit") ? MSG_DONTWAIT : 0;
	for (long at = 0; at < BYTES; at++) bytes[at] = byte_of(who, at);
	long at = 0;
	if (is_late(way)) {
		at = send_some(fd, bytes, way);
		receive_all(fd, !who);
		flags = 0;
	}
	while (at < BYTES) {
		ssize_t sent = send(fd, bytes + at, BYTES - at, flags);
		if (sent < 0 && flags && errno == EAGAIN) {
			await(fd, way);
			continue;
		}
		CHECK(sent > 0);
		at += sent;
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
		if (!is_late(way)) receive_all(fd, !who);
	}
	CHECK(!close(fd));
	CHECK(!child || (waitpid(child, &status, 0) == child && status == 0));
	return 0;
}
