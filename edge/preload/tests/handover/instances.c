/*
 * Epoll instances that come and go.
 *
 *   instances requests   one for each request, a hundred thousand times, costs no memory
 *   instances inner      the same for instances that another one watches, which stays
 *   instances closed     instances are closed while threads wait there, and others are made, which report what is
 *                        registered with them
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
	_exit(1);
}

#include "ends.h"

enum { WARM = 5000, REQUESTS = 100000, WAITERS = 2, ROUNDS = 20000, GROWTH_BYTES = 4 << 20 };
static int listening, client, server, full, idle;
static atomic_int shared, is_over;

static long resident_bytes(void) {
	long all, resident;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file && fscanf(file, "%ld %ld", &all, &resident) == 2);
	fclose(file);
	return resident * sysconf(_SC_PAGESIZE);
}

static int watching(int fd, uint64_t data) {
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = data };
	int watch = epoll_create1(0);
	CHECK(watch >= 0 && !epoll_ctl(watch, EPOLL_CTL_ADD, fd, &event));
	return watch;
}

static void reports(int watch, uint64_t data) {
	struct epoll_event events[4];
	CHECK(epoll_wait(watch, events, 4, 1000) == 1 && events[0].data.u64 == data);
}

static void request(int number) {
	int watch = watching(full, number);
	reports(watch, number);
	CHECK(!close(watch));
}

static void inner(int number) {
	static int outer = -1;
	if (outer < 0) CHECK((outer = epoll_create1(0)) >= 0);
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = number };
	int watch = watching(full, number);
	CHECK(!epoll_ctl(outer, EPOLL_CTL_ADD, watch, &event));
	reports(outer, number);
	reports(watch, number);
	CHECK(!close(watch));
	CHECK(epoll_wait(outer, &event, 1, 0) == 0);
}

static void *waits(void *nothing) {
	struct epoll_event events[4];
	while (!is_over) {
		/* It may have been closed, and its number be another's. */
		CHECK(epoll_wait(shared, events, 4, 1) >= 0 || errno == EBADF || errno == EINVAL);
	}
	return NULL;
}

static void *closes(void *nothing) {
	while (!is_over) {
		shared = watching(idle, 0);
		usleep(50);
		CHECK(!close(shared));
	}
	return NULL;
}

int main(int count, char **arguments) {
	const char *what = count > 1 ? arguments[1] : "requests";
	int other, waiting[2];
	alarm(100);
	CHECK((listening = bound(SOCK_STREAM)) >= 0 && !listen(listening, 5));
	pair(listening, &client, &server);
	pair(listening, &other, &idle);
	exchange(client, server, 200);
	exchange(other, idle, 200);
	full = server;
	CHECK(send(client, "x", 1, 0) == 1);
	if (!strcmp(what, "closed")) {
		pthread_t threads[WAITERS + 1];
		shared = watching(idle, 0);
		for (int i = 0; i <= WAITERS; i++) CHECK(!pthread_create(&threads[i], NULL, i ? waits : closes, NULL));
		for (int i = 1; i <= ROUNDS; i++) request(i);
		is_over = 1;
		for (int i = 0; i <= WAITERS; i++) CHECK(!pthread_join(threads[i], NULL));
		exchange(client, server, 1);
		return 0;
	}
	void (*round)(int) = strcmp(what, "inner") ? request : inner;
	int rounds = strcmp(what, "inner") ? REQUESTS : REQUESTS / 4;
	for (int i = 0; i < WARM; i++) round(i);
	long before = resident_bytes();
	for (int i = 0; i < rounds; i++) round(i);
	long after = resident_bytes();
	if (after - before > GROWTH_BYTES) {
		fprintf(stderr, "%ld bytes became %ld\n", before, after);
		return 1;
	}
	return 0;
}
