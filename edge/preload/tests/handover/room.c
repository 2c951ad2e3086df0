/* A child that serves its parent's connection, as servers have one for each, takes nothing for sockets of its own: no
 * larger table of descriptors, no doorbells. One that makes a socket gets its room at once.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "line %d: %s\n", __LINE__, #what); _exit(1); } } while (0)
#include "ends.h"

/* Forks after which all is looked up that a child may call are fewer. */
enum { CHILDREN = 12 };

static long room(void) {
	char line[200];
	long size = -1;
	FILE *file = fopen("/proc/self/status", "r");
	CHECK(file);
	while (fgets(line, sizeof line, file)) sscanf(line, "FDSize: %ld", &size);
	fclose(file);
	return size;
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

static int child(int fd, int accelerated) {
	char byte;
	struct epoll_event event = { .events = EPOLLIN };
	int set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	CHECK(epoll_wait(set, &event, 1, 10000) == 1 && recv(fd, &byte, 1, 0) == 1 && send(fd, &byte, 1, 0) == 1);
	CHECK(!close(set) && !close(fd));
	CHECK(room() < 1000 && !has_doorbells());
	CHECK(socket(AF_INET, SOCK_STREAM, 0) >= 0);
	CHECK(!accelerated || room() > 1000);
	return 0;
}

int main(int argc, char **argv) {
	int listening = bound(SOCK_STREAM), accelerated = room() > 1000;
	CHECK(!listen(listening, CHILDREN) && argc > 1 && accelerated == atoi(argv[1]));
	for (int i = 0; i < CHILDREN; i++) {
		int client, server, status;
		pair(listening, &client, &server);
		CHECK(send(client, "x", 1, 0) == 1);
		pid_t pid = fork();
		if (!pid) {
			close(client);
			_exit(child(server, accelerated));
		}
		char byte;
		CHECK(!close(server) && recv(client, &byte, 1, 0) == 1 && byte == 'x');
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
		close(client);
	}
	return 0;
}
