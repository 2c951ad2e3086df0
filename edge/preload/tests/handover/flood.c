/* A sender that is faster than its receiver from the beginning, so that the kernel's queue is never empty by itself, comes to
 * use the mailbox all the same.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "line %d: %s\n", __LINE__, #what); _exit(1); } } while (0)
#include "ends.h"

enum { COUNT = 400000, BY_MEMORY = 1000 };

/* With several sockets at the port, it is not known to which of them the kernel brings the flood until it has. */
static void floods(int count) {
	int ways[2], sockets[2], instance, status, one = 1, by_memory = 0;
	struct sockaddr_in address = { .sin_family = AF_INET };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(!pipe(ways));
	pid_t sender = fork();
	CHECK(sender >= 0);
	if (!sender) {
		int fd = socket(AF_INET, SOCK_DGRAM, 0);
		CHECK(read(ways[0], &address, sizeof address) == sizeof address);
		CHECK(!connect(fd, (struct sockaddr *)&address, sizeof address));
		while (send(fd, &fd, sizeof fd, 0) == sizeof fd)
			;
		_exit(0);
	}
	CHECK((instance = epoll_create1(0)) >= 0);
	for (int i = 0; i < count; i++) {
		CHECK((sockets[i] = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
		CHECK(!setsockopt(sockets[i], SOL_SOCKET, SO_REUSEPORT, &one, sizeof one));
		CHECK(!bind(sockets[i], (struct sockaddr *)&address, sizeof address));
		address = name_of(sockets[i]);
		struct epoll_event event = { .events = EPOLLIN, .data.fd = sockets[i] };
		CHECK(!epoll_ctl(instance, EPOLL_CTL_ADD, sockets[i], &event));
	}
	CHECK(write(ways[1], &address, sizeof address) == sizeof address);
	for (int at = 0; at < COUNT && by_memory < BY_MEMORY; at++) {
		struct epoll_event event;
		int got;
		CHECK(epoll_wait(instance, &event, 1, -1) == 1);
		/* Asked behind the library's back. */
		struct pollfd polled = { .fd = event.data.fd, .events = POLLIN };
		int in_kernel = syscall(SYS_poll, &polled, 1, 0);
		CHECK(recv(event.data.fd, &got, sizeof got, 0) == sizeof got);
		by_memory += !in_kernel;
	}
	CHECK(by_memory == BY_MEMORY);
	CHECK(!kill(sender, SIGKILL) && waitpid(sender, &status, 0) == sender && !close(instance));
	for (int i = 0; i < count; i++) CHECK(!close(sockets[i]));
}

int main(void) {
	floods(1);
	floods(2);
	return 0;
}
