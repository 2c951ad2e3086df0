/*
 * A receiver of datagrams that sleeps, and has been woken, and does not run yet: it is stopped. What is sent to it
 * meanwhile waits in its mailbox, and it gets all of that, in order, whatever else reads there.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
	_exit(1);
}

#include "ends.h"

/* As many as a mailbox takes from a sender that has woken its reader, and more; and less than ten of them take of the
 * kernel's queue. */
enum { FEW = 200, MANY = 700, BYTES = 8 << 10 };
enum { TALK = 40, OTHER = 1, JUMPED = 1 };

/* What the processes share. */
static struct { volatile int got, other, port; } *all;
static int fd, by_poll;

static uint32_t next_of(int flags) {
	uint32_t number;
	return recv(fd, &number, sizeof number, flags) == sizeof number ? number : UINT32_MAX;
}

static void interrupted(int signal) {
	int errno_before = errno;
	if (next_of(MSG_DONTWAIT) != UINT32_MAX) all->other++;
	errno = errno_before;
}

/* It leaves the call that it has interrupted for good. */
static sigjmp_buf before_call;
static void jumps(int signal) {
	siglongjmp(before_call, 1);
}

/* It reads all that there is, though the call that it has interrupted sleeps on. */
static void insists(int signal) {
	struct pollfd polled = { fd, POLLIN };
	while (all->got < FEW / 2) {
		uint32_t number = UINT32_MAX;
		while (number == UINT32_MAX) {
			CHECK(poll(&polled, 1, -1) == 1);
			number = next_of(MSG_DONTWAIT);
		}
		CHECK(number == all->got);
		all->got++;
	}
	for (; all->got < FEW; all->got++) CHECK(next_of(0) == all->got);
}

/* Reads numbers, of which none may be missing nor come before its turn. */
static void reads(int count) {
	for (int i = 0; i < count; i++) {
		struct pollfd polled = { fd, POLLIN };
		if (by_poll) CHECK(poll(&polled, 1, -1) == 1);
		CHECK(next_of(0) == all->got);
		all->got++;
	}
}

static void talks(int with_socket) {
	struct sockaddr_in peer;
	socklen_t len = sizeof peer;
	char byte;
	for (int i = 0; i < TALK; i++) {
		CHECK(recvfrom(with_socket, &byte, 1, 0, (struct sockaddr *)&peer, &len) == 1);
		CHECK(sendto(with_socket, &byte, 1, 0, (struct sockaddr *)&peer, len) == 1);
	}
}

static void sleeps(pid_t child) {
	for (int times = 0; times < 5; usleep(10000)) {
		char path[64], text[512], *at;
		snprintf(path, sizeof path, "/proc/%d/stat", child);
		FILE *file = fopen(path, "r");
		CHECK(file && fgets(text, sizeof text, file) && (at = strrchr(text, ')')));
		times = at[2] == 'S' ? times + 1 : 0;
		fclose(file);
	}
}

static void stopped(pid_t child) {
	int status;
	sleeps(child);
	CHECK(!kill(child, SIGSTOP) && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
}

/* What waits in the kernel's queue of the child's socket. The list may lack a socket if one before it is closed between two
 * reads of the file. */
static long queued(void) {
	char line[512];
	long bytes = -1;
	for (int times = 0; times < 100 && bytes < 0; times++) {
		FILE *file = fopen("/proc/net/udp", "r");
		CHECK(file);
		while (fgets(line, sizeof line, file)) {
			unsigned port, waiting;
			int found = sscanf(line, " %*d: %*x:%x %*x:%*x %*x %*x:%x", &port, &waiting);
			if (found == 2 && port == all->port) bytes = waiting;
		}
		fclose(file);
	}
	CHECK(bytes >= 0);
	return bytes;
}

static void sends(int from, uint32_t *number, int count) {
	for (int i = 0; i < count; i++, ++*number) CHECK(send(from, number, sizeof *number, 0) == sizeof *number);
}

/* Another process with the same socket, which does not wait, until it has got so many more. */
static pid_t other_reader(void) {
	pid_t other = fork();
	CHECK(other >= 0);
	if (other) return other;
	alarm(30);
	while (!all->other) usleep(1000);
	if (all->other == OTHER) {
		while (all->got < FEW) {
			uint32_t number = next_of(MSG_DONTWAIT);
			CHECK(number == UINT32_MAX || number == all->got);
			all->got += number != UINT32_MAX;
		}
	}
	_exit(0);
}

static void receiver(const char *how, int told) {
	int most = 1 << 20;
	pid_t other = 0;
	/* It may be stopped when the test fails. */
	CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL));
	alarm(30);
	fd = bound(SOCK_DGRAM);
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &most, sizeof most));
	all->port = ntohs(name_of(fd).sin_port);
	CHECK(write(told, "x", 1) == 1);
	talks(fd);
	if (!strcmp(how, "other")) other = other_reader();
	struct sigaction action = { .sa_handler = interrupted, .sa_flags = SA_RESTART };
	if (!strcmp(how, "jump")) action.sa_handler = jumps;
	if (!strcmp(how, "insist")) action.sa_handler = insists;
	CHECK(!sigaction(SIGUSR1, &action, NULL));
	by_poll = !strcmp(how, "poll");
	if (other) {
		/* The other one gets all that is sent while this one is stopped. */
		uint32_t number = next_of(0);
		CHECK(number == FEW && all->got == FEW);
		all->got++;
		int status;
		CHECK(waitpid(other, &status, 0) == other && !status);
		reads(FEW - 1);
	} else if (!strcmp(how, "insist")) {
		/* The handler gets what was sent before. */
		uint32_t number = next_of(0);
		CHECK(number == FEW && all->got == FEW);
		all->got++;
		reads(FEW - 1);
	} else if (!strcmp(how, "jump")) {
		if (!sigsetjmp(before_call, 1)) reads(1);
		all->other = JUMPED;
		while (all->other == JUMPED) usleep(1000);
		reads(2 * FEW);
	} else {
		reads(!strcmp(how, "many") ? MANY : 2 * FEW);
	}
	_exit(0);
}

int main(int count, char **words) {
	const char *how = words[1];
	int told[2], from, status;
	uint32_t number = 0;
	char byte = 'x';
	alarm(30);
	all = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(all != MAP_FAILED && !pipe(told));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) receiver(how, told[1]);
	CHECK(read(told[0], &byte, 1) == 1);
	from = bound(SOCK_DGRAM);
	struct sockaddr_in to = name_of(from);
	to.sin_port = htons(all->port);
	CHECK(!connect(from, (struct sockaddr *)&to, sizeof to));
	for (int i = 0; i < TALK; i++) CHECK(send(from, &byte, 1, 0) == 1 && recv(from, &byte, 1, 0) == 1);

	if (strcmp(how, "jump")) {
		stopped(child);
	} else {
		sleeps(child);
		CHECK(!kill(child, SIGUSR1));
		while (!all->other) usleep(1000);
	}
	sends(from, &number, !strcmp(how, "many") ? MANY : FEW);
	if (!strcmp(how, "many")) {
		/* It may be that nothing of that arrives: the rest goes through the kernel. */
		CHECK(queued() > BYTES);
	} else {
		CHECK(queued() < BYTES);
	}
	if (!strcmp(how, "other")) {
		all->other = OTHER;
		while (all->got < FEW) usleep(1000);
	}
	if (!strcmp(how, "jump")) all->other = 0;
	if (!strcmp(how, "handler") || !strcmp(how, "insist")) CHECK(!kill(child, SIGUSR1));
	CHECK(!kill(child, SIGCONT));
	if (strcmp(how, "many")) {
		while (all->got < FEW) usleep(1000);
		/* It sleeps in the same call if the other one has taken all. */
		if (strcmp(how, "jump")) {
			sleeps(child);
			sends(from, &number, FEW);
		} else {
			/* It sleeps as any other does: the sleep that it has left is over. */
			stopped(child);
			sends(from, &number, FEW);
			CHECK(queued() < BYTES && !kill(child, SIGCONT));
		}
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	CHECK(strcmp(how, "handler") || !all->other);
	return 0;
}
