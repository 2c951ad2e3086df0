/* Waits that end often: at short time limits, at once, or by something else.
 *
 *   limits poll|select   a socket that has a mailbox hears of a sender that has none
 *   limits limit|look|none|timer|busy|signal
 *                        a connection of an epoll instance is heard of without what was to wake it: with limits, with
 *                        calls that do not wait, without limits, and so beside a timer, what is always ready, or signals
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "line %d: %s: %s\n", __LINE__, #what, strerror(errno)); _exit(1); } } while (0)
#include "ends.h"

enum { TRIES = 100000, WAITS = 2000, LIMIT_MS = 50, QUIET = 4000, MOST_S = 20 };

static int readable(int fd, const char *how) {
	struct timespec limit = { .tv_nsec = 50000 };
	if (!strcmp(how, "select")) {
		fd_set set;
		struct timeval same = { .tv_usec = 50 };
		FD_ZERO(&set);
		FD_SET(fd, &set);
		return select(fd + 1, &set, NULL, NULL, &same);
	}
	struct pollfd polled = { .fd = fd, .events = POLLIN };
	return ppoll(&polled, 1, &limit, NULL);
}

static void hears_strangers(const char *how) {
	int to = bound(SOCK_DGRAM), fd = socket(AF_INET, SOCK_DGRAM, 0), tries = 0, by_memory = 0;
	struct sockaddr_in address = name_of(to);
	char what = 'x';
	joins(fd, to);
	while (!by_memory && tries++ < TRIES) {
		struct pollfd polled = { .fd = to, .events = POLLIN };
		CHECK(send(fd, &what, 1, 0) == 1);
		/* Asked behind the library's back. */
		by_memory = !syscall(SYS_poll, &polled, 1, 0);
		CHECK(recv(to, &what, 1, 0) == 1);
	}
	CHECK(by_memory);
	int stranger = syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0);
	CHECK(syscall(SYS_sendto, stranger, "y", 1, 0, &address, sizeof address) == 1);
	for (int i = 0; !readable(to, how); i++) CHECK(i < WAITS);
	CHECK(recv(to, &what, 1, MSG_DONTWAIT) == 1 && what == 'y');
}

static void heed(int signal) {
	(void)signal;
}

/* What ends each call besides the connection, and is to be read when it does; or -1. */
static int begin_other(int instance, const char *how) {
	struct itimerspec often = { { .tv_nsec = 100000000 }, { .tv_nsec = 100000000 } };
	struct epoll_event event = { .events = EPOLLIN, .data.fd = -1 };
	struct itimerval alarms = { { .tv_usec = 100000 }, { .tv_usec = 100000 } };
	struct sigaction heeding = { .sa_handler = heed };
	int ends[2];
	if (!strcmp(how, "signal"))
		CHECK(!sigaction(SIGALRM, &heeding, NULL) && !setitimer(ITIMER_REAL, &alarms, NULL));
	if (!strcmp(how, "timer")) {
		int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
		CHECK(timer >= 0 && !timerfd_settime(timer, 0, &often, NULL) && !epoll_ctl(instance, EPOLL_CTL_ADD, timer, &event));
		return timer;
	}
	if (!strcmp(how, "busy"))
		CHECK(!pipe(ends) && write(ends[1], "x", 1) == 1 && !epoll_ctl(instance, EPOLL_CTL_ADD, ends[0], &event));
	return -1;
}

static void makes_good(const char *how) {
	int limit_ms = !strcmp(how, "limit") ? LIMIT_MS : !strcmp(how, "look") ? 0 : -1;
	int listening = bound(SOCK_STREAM), client, server, instance = epoll_create1(0);
	char what;
	CHECK(!listen(listening, 1));
	pair(listening, &client, &server);
	exchange(client, server, 1000);
	struct epoll_event event = { .events = EPOLLIN, .data.fd = server };
	CHECK(!epoll_ctl(instance, EPOLL_CTL_ADD, server, &event));
	/* So long that it is a bell's to say when something has come, and the kernel loses that. */
	for (int i = 0; i < QUIET; i++) CHECK(!epoll_wait(instance, &event, 1, 0));
	CHECK(!syscall(SYS_epoll_ctl, instance, EPOLL_CTL_DEL, server, NULL));
	int other = begin_other(instance, how);
	uint64_t expirations;
	CHECK(send(client, "z", 1, 0) == 1);
	time_t until = time(NULL) + MOST_S;
	for (int count = 0; count < 1 || event.data.fd != server;) {
		CHECK(time(NULL) < until);
		count = epoll_wait(instance, &event, 1, limit_ms);
		if (other >= 0)
			(void)read(other, &expirations, sizeof expirations);
	}
	CHECK(recv(server, &what, 1, MSG_DONTWAIT) == 1 && what == 'z');
}

int main(int argc, char **argv) {
	CHECK(argc == 2);
	if (!strcmp(argv[1], "poll") || !strcmp(argv[1], "select"))
		hears_strangers(argv[1]);
	else
		makes_good(argv[1]);
	return 0;
}
