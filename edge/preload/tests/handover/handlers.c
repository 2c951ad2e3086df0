/*
 * What POSIX allows in a handler (signal-safety(7)) asks the program's malloc for nothing: it may be what the handler has
 * interrupted. The malloc here is the program's own. It says so and ends if it is called inside itself.
 *
 *   handlers first   a handler in the middle of malloc makes the first sockets, and calls everything for the first time
 *   handlers again   the same on connections that move their bytes through rings already
 *   handlers count   polls of 1, 8 and 300 descriptors call malloc not once, whether they sleep or not
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	char text[256];
	int len = snprintf(text, sizeof text, "line %d: %s: errno %d\n", line, what, errno);
	(void)!write(2, text, len);
	_exit(1);
}

#include <linux/tcp.h>

#include "ends.h"

/* The heap: nothing in it is ever free again. */
enum { HEAP_BYTES = 64 << 20, HEAD = 16 };
static char heap[HEAP_BYTES] __attribute__((aligned(16)));
static size_t used;
static volatile long calls;
static volatile sig_atomic_t is_inside, is_due;

void *memalign(size_t boundary, size_t bytes) {
	if (is_inside) {
		static const char text[] = "malloc was called in the middle of itself\n";
		(void)!write(2, text, sizeof text - 1);
		abort();
	}
	is_inside = 1;
	__atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
	if (is_due) {
		is_due = 0;
		raise(SIGUSR1);
	}
	if (boundary < HEAD) boundary = HEAD;
	size_t at = (used + HEAD + boundary - 1) / boundary * boundary;
	if (at + bytes > HEAP_BYTES) fail(__LINE__, "the heap is large enough");
	used = at + bytes;
	memcpy(heap + at - HEAD, &bytes, sizeof bytes);
	is_inside = 0;
	return heap + at;
}
void *malloc(size_t bytes) { return memalign(HEAD, bytes); }
void *calloc(size_t count, size_t bytes) { return memset(malloc(count * bytes), 0, count * bytes); }
void free(void *old) {}
void *realloc(void *old, size_t bytes) {
	size_t before = 0;
	if (old) memcpy(&before, (char *)old - HEAD, sizeof before);
	char *new = malloc(bytes);
	if (old) memcpy(new, old, before < bytes ? before : bytes);
	return new;
}
void *aligned_alloc(size_t boundary, size_t bytes) { return memalign(boundary, bytes); }
int posix_memalign(void **at, size_t boundary, size_t bytes) { return *at = memalign(boundary, bytes), 0; }

enum { WARM = 200, MANY = 300, POLLS = 50 };
static int listening, client, server, watch, ran;

static void polls(int fd, int count, int limit_ms, int expected) {
	struct pollfd fds[MANY];
	for (int i = 0; i < count; i++) fds[i] = (struct pollfd) { .fd = fd, .events = POLLIN };
	CHECK(poll(fds, count, limit_ms) == expected);
}

static void everything(int client, int server) {
	struct epoll_event event;
	char byte = 'x';
	fd_set set;
	for (int count = 1; count <= MANY; count = count * 3 + 1) {
		polls(client, count, 0, 0);
		polls(client, count, 1, 0);
		CHECK(send(server, &byte, 1, 0) == 1);
		polls(client, count, 1000, count);
		CHECK(recv(client, &byte, 1, 0) == 1);
	}
	for (int round = 0; round < 2; round++) {
		FD_ZERO(&set);
		FD_SET(client, &set);
		FD_SET(server, &set);
		struct timeval limit = { .tv_usec = 1000 };
		CHECK(select(FD_SETSIZE, &set, NULL, NULL, &limit) == round);
		CHECK(epoll_wait(watch, &event, 1, 1) == round);
		if (!round) CHECK(send(server, &byte, 1, 0) == 1);
	}
	CHECK(recv(client, &byte, 1, 0) == 1);
	exchange(client, server, 5);
}

/* With rings, what moves is not the kernel's. */
static void moves_by_rings(int fd, int bytes) {
	struct tcp_info info;
	socklen_t len = sizeof info;
	const char *transport = getenv("ADVERB_SOCKETS_TRANSPORT");
	CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
	CHECK(!transport || strcmp(transport, "shm") || info.tcpi_bytes_acked < bytes);
}

static void listens(void) {
	CHECK((listening = bound(SOCK_STREAM)) >= 0 && !listen(listening, 5));
}

/* A listener on all addresses is found from other network namespaces by those that the kernel lists. */
static void listens_anywhere(void) {
	struct sockaddr_in address = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&address, sizeof address) && !listen(fd, 5) && !close(fd));
}

/* A program without the library gets one end of a connection, and a datagram: they go back to the kernel before. */
static void hands_over(int client, int server) {
	char *const arguments[] = { "true", NULL }, *const environment[] = { NULL };
	int status, from, to;
	char bytes[2] = "xy";
	mails(&from, &to);
	exchange(from, to, WARM);
	CHECK(!fcntl(from, F_SETFD, FD_CLOEXEC) && !fcntl(client, F_SETFD, FD_CLOEXEC));
	CHECK(send(from, bytes, 1, 0) == 1 && send(client, bytes, 1, 0) == 1);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		execve("/bin/true", arguments, environment);
		_exit(9);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	CHECK(send(client, bytes + 1, 1, 0) == 1);
	CHECK(recv(server, bytes, 1, 0) == 1 && recv(server, bytes + 1, 1, 0) == 1 && !memcmp(bytes, "xy", 2));
	CHECK(recv(to, bytes + 1, 1, 0) == 1 && bytes[1] == 'x');
	CHECK(!close(from) && !close(to));
}

static void first(int number) {
	struct epoll_event event = { .events = EPOLLIN };
	listens();
	pair(listening, &client, &server);
	CHECK((watch = epoll_create1(0)) >= 0 && !epoll_ctl(watch, EPOLL_CTL_ADD, client, &event));
	everything(client, server);
	exchange(client, server, WARM);
	everything(client, server);
	moves_by_rings(server, WARM);
	listens_anywhere();
	hands_over(client, server);
	CHECK(!shutdown(client, SHUT_WR) && !close(client) && !close(server) && !close(watch));
	ran = 1;
}

static void again(int number) {
	everything(client, server);
	ran = 1;
}

int main(int count, char **arguments) {
	const char *what = count > 1 ? arguments[1] : "first";
	alarm(100);
	if (strcmp(what, "first")) {
		struct epoll_event event = { .events = EPOLLIN };
		listens();
		pair(listening, &client, &server);
		CHECK((watch = epoll_create1(0)) >= 0 && !epoll_ctl(watch, EPOLL_CTL_ADD, client, &event));
		exchange(client, server, WARM);
		moves_by_rings(server, WARM);
	}
	if (!strcmp(what, "count")) {
		everything(client, server);
		for (int round = 0; round < POLLS; round++) {
			long before = calls;
			everything(client, server);
			CHECK(calls == before);
		}
		return 0;
	}
	struct sigaction action = { .sa_handler = strcmp(what, "first") ? again : first };
	CHECK(!sigaction(SIGUSR1, &action, NULL));
	is_due = 1;
	CHECK(malloc(100) && ran);
	return 0;
}
