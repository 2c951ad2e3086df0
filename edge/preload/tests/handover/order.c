/* Datagrams of one sender come in the order in which they were sent, while their way changes from the kernel to a mailbox: a
 * sender that is faster than its receiver has some in the kernel's queue then. They are fewer than the queue holds.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "line %d: %s\n", __LINE__, #what); _exit(1); } } while (0)
#include "ends.h"

enum { COUNT = 200 };

/* Datagrams that were there when the kernel had none. */
static int by_memory;

static long now(void) {
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void works(long ns) {
	for (long until = now() + ns; now() < until;)
		;
}

static void streams(long sender_ns, long receiver_ns) {
	int to = bound(SOCK_DGRAM), status;
	pid_t sender = fork();
	CHECK(sender >= 0);
	if (!sender) {
		int fd = socket(AF_INET, SOCK_DGRAM, 0);
		joins(fd, to);
		CHECK(!close(to));
		for (int i = 0; i < COUNT; i++) {
			CHECK(send(fd, &i, sizeof i, 0) == sizeof i);
			works(sender_ns);
		}
		/* What is in a mailbox is its receiver's after that. */
		_exit(0);
	}
	struct timeval limit = { 20, 0 };
	CHECK(!setsockopt(to, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	for (int i = 0, got; i < COUNT; i++) {
		struct pollfd polled = { .fd = to, .events = POLLIN };
		/* The second time behind the library's back. */
		by_memory += poll(&polled, 1, 0) == 1 && !syscall(SYS_poll, &polled, 1, 0);
		CHECK(recv(to, &got, sizeof got, 0) == sizeof got);
		if (got != i) {
			dprintf(2, "%d in place of %d, at %ld and %ld ns\n", got, i, sender_ns, receiver_ns);
			_exit(1);
		}
		works(receiver_ns);
	}
	CHECK(waitpid(sender, &status, 0) == sender && !status && !close(to));
}

int main(void) {
	long paces[] = { 2000, 20000, 50000, 100000 };
	for (int i = 0; i < 4; i++)
		for (int slower = 1; slower <= 5; slower++)
			streams(paces[i], paces[i] * slower);
	CHECK(by_memory);
	return 0;
}
