/*
 * Two threads of different real-time priorities share a processor and a socket: the one that has interrupted the other
 * in the middle of a call lets it finish.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
	_exit(1);
}

#include "ends.h"

enum { LOW = 10, HIGH = 20, ROUNDS = 2000, NAP_US = 100, LEN = 32 << 10 };
static int listening, client, server;
static atomic_int is_over;

static void is_real_time(int priority) {
	struct sched_param param = { .sched_priority = priority };
	cpu_set_t first;
	CPU_ZERO(&first);
	CPU_SET(sched_getcpu(), &first);
	CHECK(!pthread_setaffinity_np(pthread_self(), sizeof first, &first));
	CHECK(!(errno = pthread_setschedparam(pthread_self(), SCHED_FIFO, &param)));
}

/* One has a processor, and the other one inherits it. */
static void moves(int len) {
	static __thread char bytes[LEN];
	CHECK(send(client, bytes, len, MSG_DONTWAIT) > 0 || errno == EAGAIN);
	CHECK(recv(server, bytes, sizeof bytes, MSG_DONTWAIT) > 0 || errno == EAGAIN);
}

static void *lives_on_the_rest(void *nothing) {
	struct sched_param param = { .sched_priority = LOW };
	CHECK(!(errno = pthread_setschedparam(pthread_self(), SCHED_FIFO, &param)));
	while (!is_over) moves(LEN);
	return NULL;
}

int main(void) {
	pthread_t low;
	alarm(60);
	CHECK((listening = bound(SOCK_STREAM)) >= 0 && !listen(listening, 5));
	pair(listening, &client, &server);
	exchange(client, server, 200);
	is_real_time(HIGH);
	CHECK(!pthread_create(&low, NULL, lives_on_the_rest, NULL));
	for (int i = 0; i < ROUNDS; i++) {
		usleep(NAP_US);
		moves(1);
	}
	is_over = 1;
	CHECK(!pthread_join(low, NULL));
	return 0;
}
