/*
 * Several threads wait on one epoll instance, one event each. While one of them is busy with what came of
 * one connection, what comes of another at the same instant is another thread's.
 *
 *   crowd level|oneshot|edge   how the connections are registered
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
	_exit(1);
}

#include "ends.h"

/*
 * A thread that misses an event finds it by itself, after 60 ms and more in these rounds. A busy machine may be as
 * late, but not in every fourth of them, in each of some series.
 */
enum { THREADS = 8, SERIES = 5, ROUNDS = 21, USUAL = ROUNDS * 3 / 4, LATE_MS = 45, BUSY_US = 300000 };
static int watch, way = EPOLLIN;

static void *serve(void *unused) {
	for (;;) {
		struct epoll_event event;
		char what;
		if (epoll_wait(watch, &event, 1, -1) != 1)
			continue;
		int fd = event.data.fd;
		if (recv(fd, &what, 1, MSG_DONTWAIT) != 1)
			continue;
		if (what == 'b')
			usleep(BUSY_US);
		CHECK(send(fd, &what, 1, 0) == 1);
		if (way & EPOLLONESHOT) {
			event.events = way;
			CHECK(!epoll_ctl(watch, EPOLL_CTL_MOD, fd, &event));
		}
	}
}

static double now_ms(void) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static int later(const void *a, const void *b) {
	double difference = *(const double *)a - *(const double *)b;
	return (difference > 0) - (difference < 0);
}

static void ask(int fd, char what) { CHECK(send(fd, &what, 1, 0) == 1); }

static void hear(int fd) {
	char what;
	CHECK(recv(fd, &what, 1, 0) == 1);
}

/* What every fourth answer takes, or more. */
static double series(int busy, int quick) {
	double took[ROUNDS];
	for (int round = 0; round < ROUNDS; round++) {
		usleep(30000); /* All of them sleep. */
		ask(busy, 'b');
		double start = now_ms();
		ask(quick, 'q');
		hear(quick);
		took[round] = now_ms() - start;
		hear(busy);
	}
	qsort(took, ROUNDS, sizeof took[0], later);
	return took[USUAL];
}

static void client(int listener) {
	int busy = socket(AF_INET, SOCK_STREAM, 0), quick = socket(AF_INET, SOCK_STREAM, 0);
	joins(busy, listener);
	joins(quick, listener);
	/* Until they have rings. */
	for (int round = 0; round < 20; round++) {
		ask(busy, 'q');
		hear(busy);
		ask(quick, 'q');
		hear(quick);
	}
	double usual = 0;
	for (int count = 0; count < SERIES; count++) {
		usual = series(busy, quick);
		if (usual <= LATE_MS) _exit(0);
	}
	fprintf(stderr, "every fourth answer took %.1f ms or more\n", usual);
	_exit(1);
}

int main(int count, char **words) {
	CHECK(count == 2);
	way |= !strcmp(words[1], "oneshot") ? EPOLLONESHOT : !strcmp(words[1], "edge") ? EPOLLET : 0;
	int listener = bound(SOCK_STREAM), status;
	CHECK(!listen(listener, 2));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		client(listener);
	CHECK((watch = epoll_create1(0)) >= 0);
	for (int number = 0; number < 2; number++) {
		struct epoll_event event = { .events = way };
		CHECK((event.data.fd = accept(listener, NULL, NULL)) >= 0);
		CHECK(!epoll_ctl(watch, EPOLL_CTL_ADD, event.data.fd, &event));
	}
	for (int number = 0; number < THREADS; number++) {
		pthread_t thread;
		CHECK(!pthread_create(&thread, NULL, serve, NULL));
	}
	CHECK(waitpid(child, &status, 0) == child);
	_exit(status != 0);
}
