/*
 * A program that confines itself to the system calls that it makes itself: it goes on with its connection,
 * which had rings, and another call ends it. What was on its way when it did so arrives.
 *
 *   confined prctl|seccomp poll|epoll   the call by which it does so, and how it waits
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
	_exit(1);
}

#include "ends.h"

enum { ROUNDS = 1000, BLOCK = 100000 };
static char block[BLOCK];
static int watch = -1;

static void await(int fd) {
	struct pollfd one = { fd, POLLIN };
	struct epoll_event event;
	CHECK((watch < 0 ? poll(&one, 1, 10000) : epoll_wait(watch, &event, 1, 10000)) == 1);
}

static void confine(int by_number) {
#define MAY(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET, SECCOMP_RET_ALLOW)
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		MAY(read), MAY(write), MAY(recvfrom), MAY(sendto), MAY(ppoll), MAY(shutdown), MAY(close),
#ifdef SYS_poll
		MAY(poll), MAY(epoll_wait),
#endif
		MAY(epoll_pwait),
		MAY(exit_group),
		BPF_STMT(BPF_RET, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	if (by_number)
		CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
	else
		CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void give(int fd, size_t len) {
	for (size_t done = 0; done < len;) {
		ssize_t sent = write(fd, block + done, len - done);
		CHECK(sent > 0);
		done += sent;
	}
}

static void take(int fd, size_t len) {
	char got[4096];
	for (size_t done = 0; done < len;) {
		await(fd);
		ssize_t count = read(fd, got, len - done < sizeof got ? len - done : sizeof got);
		CHECK(count > 0 && !memcmp(got, block + done, count));
		done += count;
	}
}

int main(int count, char **arguments) {
	for (int at = 0; at < BLOCK; at++) block[at] = at % 251;
	CHECK(count == 3);
	int by_number = !strcmp(arguments[1], "seccomp"), by_epoll = !strcmp(arguments[2], "epoll");
	int listener = bound(SOCK_STREAM);
	CHECK(!listen(listener, 1));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		int fd = accept(listener, NULL, NULL);
		struct epoll_event event = { EPOLLIN };
		CHECK(fd >= 0);
		if (by_epoll) CHECK((watch = epoll_create1(0)) >= 0 && !epoll_ctl(watch, EPOLL_CTL_ADD, fd, &event));
		for (int round = 0; round < ROUNDS; round++) take(fd, 100), give(fd, 100);
		confine(by_number);
		take(fd, BLOCK);
		give(fd, BLOCK);
		for (int round = 0; round < ROUNDS; round++) take(fd, 100), give(fd, 100);
		CHECK(!shutdown(fd, SHUT_WR) && !read(fd, block, 1) && !close(fd));
		_exit(0);
	}
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	joins(fd, listener);
	for (int round = 0; round < ROUNDS; round++) give(fd, 100), take(fd, 100);
	give(fd, BLOCK);
	take(fd, BLOCK);
	for (int round = 0; round < ROUNDS; round++) give(fd, 100), take(fd, 100);
	CHECK(!read(fd, block, 1) && !close(fd));
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	return 0;
}
