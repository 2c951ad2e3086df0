/* A child that serves its parent's connection, as servers have one for each, takes nothing for sockets of its own: no
 * larger table of descriptors, no doorbells. One that makes a thread or a socket gets its room at once: with threads it
 * would have to wait for it. A fork in a handler looks nothing up.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "line %d: %s\n", __LINE__, #what); _exit(1); } } while (0)
#include "ends.h"

/* Forks after which all is looked up that a child may call are fewer. */
enum { CHILDREN = 12 };

static volatile sig_atomic_t is_in_handler;
static int lookups;

/* The library looks names up here. */
void *dlsym(void *handle, const char *name) {
	void *libc = dlopen("libc.so.6", RTLD_LAZY);
	void *(*real)(void *, const char *) = dlvsym(libc, "dlsym", "GLIBC_2.34");
	lookups++;
	CHECK(real && !is_in_handler);
	return real(libc, name);
}

static void fork_in_handler(int number) {
	int status;
	is_in_handler = number;
	pid_t pid = fork();
	if (!pid) _exit(0);
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
	is_in_handler = 0;
}

static long room(void) {
	char line[200];
	long size = -1;
	FILE *file = fopen("/proc/self/status", "r");
	CHECK(file);
	while (fgets(line, sizeof line, file)) sscanf(line, "FDSize: %ld", &size);
	fclose(file);
	return size;
}

static int thread_with_room(void *found) {
	return *(int *)found = room() > 1000;
}

static void *pthread_with_room(void *found) {
	thread_with_room(found);
	return NULL;
}

/* A thread of either kind, or a socket. */
static int makes_room(int how) {
	int found = 0;
	pthread_t thread;
	thrd_t other;
	switch (how) {
	case 0:
		CHECK(!pthread_create(&thread, NULL, pthread_with_room, &found) && !pthread_join(thread, NULL));
		return found;
	case 1:
		CHECK(thrd_create(&other, thread_with_room, &found) == thrd_success && thrd_join(other, NULL) == thrd_success);
		return found;
	default:
		CHECK(socket(AF_INET, SOCK_STREAM, 0) >= 0);
		return room() > 1000;
	}
}

static int has_doorbells(void) {
	char line[500];
	int found = 0;
	FILE *file = fopen("/proc/self/maps", "r");
	CHECK(file);
	while (fgets(line, sizeof line, file)) found |= !!strstr(line, "/doorbells.");
	fclose(file);
	return found;
}

static int child(int fd, int accelerated, int how) {
	char byte;
	struct epoll_event event = { .events = EPOLLIN };
	int set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	CHECK(epoll_wait(set, &event, 1, 10000) == 1 && recv(fd, &byte, 1, 0) == 1 && send(fd, &byte, 1, 0) == 1);
	CHECK(!close(set) && !close(fd));
	CHECK(room() < 1000 && !has_doorbells());
	CHECK(makes_room(how) == accelerated);
	return 0;
}

int main(int argc, char **argv) {
	int listening = bound(SOCK_STREAM), accelerated = room() > 1000;
	CHECK(!listen(listening, CHILDREN) && argc > 1 && accelerated == atoi(argv[1]));
	CHECK(signal(SIGUSR1, fork_in_handler) != SIG_ERR);
	fork_in_handler(0);
	for (int i = 0; i < CHILDREN; i++) raise(SIGUSR1);
	int before = lookups;
	for (int i = 0; i < CHILDREN; i++) {
		int client, server, status;
		pair(listening, &client, &server);
		CHECK(send(client, "x", 1, 0) == 1);
		pid_t pid = fork();
		if (!pid) {
			close(client);
			_exit(child(server, accelerated, i % 3));
		}
		char byte;
		CHECK(!close(server) && recv(client, &byte, 1, 0) == 1 && byte == 'x');
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
		close(client);
	}
	CHECK(!accelerated || lookups > before + 50);
	return 0;
}
