/*
 * The kernel gives a number that was a process's to another one. In a namespace of processes of its own this program says
 * itself which number comes next.
 * A server of datagrams with a mailbox is killed, and its number is another process's: its client is refused.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
	_exit(1);
}

#include "ends.h"

/* A number, and how long its two owners lie apart: the kernel says when they began in steps of 10 ms. */
enum { NUMBER = 3000, ASKED = 200, APART_US = 100000, TRIES = 3000, TRY_US = 10000 };

static void next_is(int number) {
	char text[16];
	int file = open("/proc/sys/kernel/ns_last_pid", O_WRONLY);
	int len = snprintf(text, sizeof text, "%d", number - 1);
	CHECK(file >= 0 && write(file, text, len) == len);
	close(file);
}

static pid_t numbered(int number) {
	next_is(number);
	pid_t child = fork();
	CHECK(child == 0 || child == number);
	return child;
}

/* The process of that number is killed, and the next one has it. */
static void is_replaced(int number) {
	int status;
	CHECK(!kill(number, SIGKILL) && waitpid(number, &status, 0) == number);
	usleep(APART_US);
	if (!numbered(number)) {
		for (;;) pause();
	}
}

static void serve_datagrams(int told) {
	char text[64];
	int own = bound(SOCK_DGRAM);
	struct sockaddr_in address = name_of(own), from;
	CHECK(write(told, &address, sizeof address) == sizeof address);
	for (int i = 0; i < ASKED; i++) {
		socklen_t len = sizeof from;
		ssize_t count = recvfrom(own, text, sizeof text, 0, (struct sockaddr *)&from, &len);
		CHECK(count > 0 && sendto(own, text, count, 0, (struct sockaddr *)&from, len) == count);
	}
	/* It is busy, not asleep: what comes meanwhile goes to its mailbox. */
	for (;;) pause();
}

static void datagrams(void) {
	struct sockaddr_in address;
	char text[64];
	int tell[2], i;
	CHECK(!pipe(tell));
	if (!numbered(NUMBER)) serve_datagrams(tell[1]);
	CHECK(read(tell[0], &address, sizeof address) == sizeof address);
	int client = bound(SOCK_DGRAM);
	CHECK(!connect(client, (struct sockaddr *)&address, sizeof address));
	for (i = 0; i < ASKED; i++) {
		CHECK(send(client, "ask", 3, 0) == 3 && recv(client, text, sizeof text, 0) == 3);
	}
	is_replaced(NUMBER);
	for (i = 0; i < TRIES && send(client, "ask", 3, 0) == 3; i++) usleep(TRY_US);
	CHECK(i < TRIES && errno == ECONNREFUSED);
}

int main(int count, char **arguments) {
	int status;
	alarm(100);
	if (count > 1) {
		datagrams();
		return 0;
	}
	if (unshare(CLONE_NEWPID | CLONE_NEWNS)) {
		fprintf(stderr, "skipped: no namespace of processes: %s\n", strerror(errno));
		return 0;
	}
	pid_t first = fork();
	CHECK(first >= 0);
	if (first) {
		CHECK(waitpid(first, &status, 0) == first);
		return !WIFEXITED(status) || WEXITSTATUS(status);
	}
	alarm(100);
	CHECK(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) && !mount("proc", "/proc", "proc", 0, NULL));
	if (access("/proc/sys/kernel/ns_last_pid", W_OK)) {
		fprintf(stderr, "skipped: no say in the numbers of processes: %s\n", strerror(errno));
		return 0;
	}
	/* A new program, which has never seen the other numbers. */
	CHECK(!execl(arguments[0], arguments[0], "inside", NULL));
}
