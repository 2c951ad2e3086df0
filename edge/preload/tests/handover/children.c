/*
 * Forks in a tight loop while other threads make, accept, copy and close connections, wait on some, and send
 * and receive datagrams: no child hangs, each can use what it has inherited and sockets of its own, and when
 * all have ended, as many sockets are known as before.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKS 300
#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	fprintf(stderr, "%d, line %d: %s: %s\n", getpid(), line, what, strerror(errno));
	_exit(1);
}

#include "ends.h"
#include "known.h"

static int listener;
static volatile int is_over;

/* Connections and copies of them, some of them watched. */
static void *makes(void *unused) {
	int own = bound(SOCK_STREAM);
	CHECK(!listen(own, 8));
	for (int i = 0; !is_over; i++) {
		int client, server, copy, watch;
		pair(own, &client, &server);
		exchange(client, server, 3);
		CHECK((copy = dup(client)) >= 0 && !close(client));
		struct epoll_event event = { EPOLLIN, { .u64 = 1 } };
		CHECK((watch = epoll_create1(0)) >= 0);
		if (i % 2) CHECK(!epoll_ctl(watch, EPOLL_CTL_ADD, copy, &event));
		CHECK(!close(copy) && !close(server) && !close(watch));
	}
	CHECK(!close(own));
	return NULL;
}

/* Datagrams, to one place and to others, so that ways come and go. */
static void *writes(void *unused) {
	while (!is_over) {
		int a, b;
		mails(&a, &b);
		exchange(a, b, 20);
		CHECK(!close(a) && !close(b));
	}
	return NULL;
}

/* Waits for ever, nearly. */
static void *waits(void *fd) {
	char byte;
	CHECK(recv((int)(intptr_t)fd, &byte, 1, 0) == 1);
	return NULL;
}

/* What a child does: it uses sockets of its own, and one that it has inherited, and closes both. */
static void lives(int i, int client, int server, int mail, int friend, int waited) {
	int a, b, own;
	alarm(60); /* as good as for ever */
	exchange(client, server, 2);
	exchange(mail, friend, 2);
	CHECK(!close(waited));
	if (i % 3 == 0) {
		own = bound(SOCK_STREAM);
		CHECK(!listen(own, 8));
		pair(own, &a, &b);
		exchange(a, b, 3);
		CHECK(!close(a) && !close(b) && !close(own));
		mails(&a, &b);
		CHECK(!close(a) && !close(b));
	}
	CHECK(!close(client) && !close(server) && !close(mail) && !close(friend) && !close(listener));
}

int main(void) {
	pthread_t threads[5];
	int client, server, mail, friend, waited[2], before, after;
	listener = bound(SOCK_STREAM);
	CHECK(!listen(listener, 64));
	pair(listener, &client, &server);
	pair(listener, &waited[0], &waited[1]);
	mails(&mail, &friend);
	exchange(client, server, 4);
	exchange(waited[0], waited[1], 4);
	before = known();
	for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, makes, NULL));
	for (int i = 2; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, writes, NULL));
	CHECK(!pthread_create(&threads[4], NULL, waits, (void *)(intptr_t)waited[0]));
	for (int i = 0; i < FORKS; i++) {
		int status;
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			lives(i, client, server, mail, friend, waited[0]);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(status == 0);
	}
	is_over = 1;
	CHECK(send(waited[1], "x", 1, 0) == 1);
	for (int i = 0; i < 5; i++) CHECK(!pthread_join(threads[i], NULL));
	/* What it had all the time works as before. */
	exchange(client, server, 4);
	exchange(waited[0], waited[1], 4);
	exchange(mail, friend, 4);
	after = known();
	if (after != before) fprintf(stderr, "%d sockets before, %d after\n", before, after);
	CHECK(after == before);
	_exit(0);
}
