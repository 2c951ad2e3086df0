/*
 * Threads that are cancelled in calls that wait: each ends there, and what it waited for works as before.
 *
 * Each round makes a connection and two sockets for datagrams, has a thread wait on them in one way, cancels
 * that thread after another while, and then sends and receives both ways and waits in other ways. Of what it
 * has closed nothing stays mapped.
 *
 *   cancel ways SHARE SHARES   every so many of the ways to wait, from one on
 *   cancel connect             what waits for a connection
 *   cancel again|poll          a connection that is called for again, or waited for, after that
 *
 * They mostly sleep, so they are run side by side.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *doing = "start";

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	fprintf(stderr, "%s, line %d: %s: %s\n", doing, line, what, strerror(errno));
	_exit(1);
}

#include "ends.h"

static int listener, client, server, other, watch;
/* Two sockets that exchange datagrams, and one that is on its way to a listener whose queue is full. */
static int mail, friend, busy, early;
static char block[1 << 16];
static sem_t ready, cleaned;
static volatile int is_cancelled, is_through;

static void by_recv(void) { recv(server, block, sizeof block, 0); }
static void by_read(void) { read(server, block, sizeof block); }
static void by_recvmsg(void) {
	struct iovec part = { block, sizeof block };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	recvmsg(server, &message, 0);
}
static void by_send(void) {
	for (;;) CHECK(send(client, block, sizeof block, 0) > 0);
}
static void by_write(void) {
	for (;;) CHECK(write(client, block, sizeof block) > 0);
}
static void by_accept(void) { accept(listener, NULL, NULL); }
static void by_poll(void) {
	struct pollfd fd = { server, POLLIN, 0 };
	poll(&fd, 1, -1);
}
static void by_poll_two(void) {
	struct pollfd fds[] = { { server, POLLIN, 0 }, { other, POLLIN, 0 } };
	poll(fds, 2, -1);
}
static void by_select(void) {
	fd_set set;
	FD_ZERO(&set);
	FD_SET(server, &set);
	select(server + 1, &set, NULL, NULL, NULL);
}
static void by_epoll(void) {
	struct epoll_event events[8];
	epoll_wait(watch, events, 8, -1);
}
static void by_datagram(void) { recvfrom(other, block, sizeof block, 0, NULL, NULL); }

static void by_mail(void) { recv(mail, block, sizeof block, 0); }
static void by_mailmsg(void) {
	struct iovec part = { block, sizeof block };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	recvmsg(mail, &message, 0);
}
static void by_mmsg(void) {
	struct iovec parts[2] = { { block, 100 }, { block + 100, 100 } };
	struct mmsghdr messages[2] = { { { .msg_iov = parts, .msg_iovlen = 1 } },
		{ { .msg_iov = parts + 1, .msg_iovlen = 1 } } };
	recvmmsg(mail, messages, 2, 0, NULL);
}
static void by_mail_poll(void) {
	struct pollfd fds[] = { { mail, POLLIN, 0 }, { server, POLLIN, 0 } };
	poll(fds, 2, -1);
}
static void by_mail_epoll(void) {
	struct epoll_event event = { EPOLLIN, { .u64 = 9 } };
	CHECK(!epoll_ctl(watch, EPOLL_CTL_ADD, mail, &event));
	by_epoll();
}
/* Those that find something every time, or do not wait. */
static void by_mail_peek(void) {
	CHECK(send(friend, "kept", 4, 0) == 4);
	for (;;) CHECK(recv(mail, block, sizeof block, MSG_PEEK) == 4);
}
static void by_mails(void) {
	for (;;) send(mail, block, 100, 0);
}
static void by_mail_now(void) {
	for (;;) CHECK(recv(mail, block, sizeof block, MSG_DONTWAIT) < 0 && errno == EAGAIN);
}
static void by_now(void) {
	for (;;) CHECK(recv(server, block, sizeof block, MSG_DONTWAIT) < 0 && errno == EAGAIN);
}
static void by_connect(void) {
	struct sockaddr_in address;
	socklen_t len = sizeof address;
	CHECK(!getsockname(busy, (struct sockaddr *)&address, &len));
	connect(early, (struct sockaddr *)&address, len);
}
/* Calls in which no thread ends, though it has been cancelled before, and the library does more in them than
 * the kernel. */
static void by_none(void) {
	int old, one = 1;
	CHECK(!pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old));
	while (!is_cancelled) usleep(100);
	CHECK(!pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old));
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
	CHECK(!listen(fd, 3) && dup2(fd, other) == other && !shutdown(fd, SHUT_RD));
	pid_t child = fork();
	if (!child) _exit(0);
	CHECK(child > 0);
	CHECK(!pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old));
	CHECK(waitpid(child, NULL, 0) == child && !close(fd));
	CHECK(!pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old));
	is_through = 1;
	pthread_testcancel();
}

static const struct { const char *name; void (*call)(void); int fills, is_mail, never_sleeps; } WAYS[] = {
	{ "recv", by_recv }, { "read", by_read }, { "recvmsg", by_recvmsg }, { "send", by_send, 1 },
	{ "write", by_write, 1 }, { "accept", by_accept }, { "poll", by_poll }, { "poll of two", by_poll_two },
	{ "select", by_select }, { "epoll_wait", by_epoll }, { "recvfrom", by_datagram },
	{ "recv of a datagram", by_mail, .is_mail = 1 }, { "recvmsg of a datagram", by_mailmsg, .is_mail = 1 },
	{ "recvmmsg", by_mmsg, .is_mail = 1 }, { "poll of datagrams", by_mail_poll, .is_mail = 1 },
	{ "epoll_wait for datagrams", by_mail_epoll, .is_mail = 1 },
	{ "recv that peeks", by_mail_peek, .is_mail = 1, .never_sleeps = 1 }, { "sends of datagrams", by_mails, .is_mail = 1, .never_sleeps = 1 },
	{ "recv of datagrams that does not wait", by_mail_now, .is_mail = 1, .never_sleeps = 1 },
	{ "recv that does not wait", by_now, .never_sleeps = 1 }, { "calls that do not end", by_none, .never_sleeps = 1 },
};

static void clean(void *unused) { sem_post(&cleaned); }

static void *waits(void *call) {
	pthread_cleanup_push(clean, NULL);
	sem_post(&ready);
	((void (*)(void))call)();
	pthread_cleanup_pop(0);
	return NULL;
}

/* Has a thread make a call, and cancels it after so long. */
static void cancels(void (*call)(void), int after_us) {
	pthread_t thread;
	void *ended;
	is_cancelled = is_through = 0;
	CHECK(!pthread_create(&thread, NULL, waits, call));
	CHECK(!sem_wait(&ready));
	usleep(after_us);
	CHECK(!pthread_cancel(thread));
	is_cancelled = 1;
	CHECK(!pthread_join(thread, &ended));
	CHECK(ended == PTHREAD_CANCELED);
	CHECK(!sem_trywait(&cleaned));
	CHECK(call != by_none || is_through);
}

/* What of the library's is mapped here that belongs to a single socket: rings, and mailboxes. */
static void mapped(int *rings, int *mailboxes) {
	char line[1024];
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	*rings = *mailboxes = 0;
	while (fgets(line, sizeof line, maps)) {
		char *name = strstr(line, getenv("ADVERB_SOCKETS_SHM_DIR"));
		if (!name || !(name = strstr(name, "/rings/"))) continue;
		name += strlen("/rings/");
		int dots = 0;
		for (char *at = name; *at && !isspace(*at); at++) dots += *at == '.';
		if (!dots) ++*rings;
		if (!strncmp(name, "udp.", 4) && dots > 2) ++*mailboxes;
	}
	fclose(maps);
}

static void take(int fd, size_t count) {
	while (count) {
		ssize_t got = recv(fd, block, count < sizeof block ? count : sizeof block, 0);
		CHECK(got > 0);
		count -= got;
	}
}

/* Datagrams both ways, each in its turn. */
static void correspond(void) {
	int ends[2] = { mail, friend };
	for (int i = 0; i < 20; i++) {
		char sent = 'a' + i, got;
		CHECK(send(ends[i % 2], &sent, 1, 0) == 1);
		CHECK(recv(ends[!(i % 2)], &got, 1, 0) == 1 && got == sent);
	}
}

static void empty(int fd) {
	while (recv(fd, block, sizeof block, MSG_DONTWAIT) >= 0) continue;
	CHECK(errno == EAGAIN);
}

static void verify_mail(void) {
	empty(mail);
	empty(friend);
	correspond();
	CHECK(send(friend, "y", 1, 0) == 1);
	struct pollfd fd = { mail, POLLIN, 0 };
	CHECK(poll(&fd, 1, -1) == 1 && fd.revents == POLLIN);
	CHECK(recv(mail, block, sizeof block, 0) == 1);
	CHECK(poll(&fd, 1, 0) == 0);
}

/* Whether waits spin for as long as they last. */
static int never_sleeps(void) {
	const char *profile = getenv("ADVERB_SOCKETS_PROFILE");
	return profile && !strcmp(profile, "latency");
}

static int is_shared(void) { return !strcmp(getenv("ADVERB_SOCKETS_TRANSPORT"), "shm"); }

static void round_of(int way, int after_us) {
	int rings, mailboxes;
	CHECK((client = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	joins(client, listener);
	/* What is small is not to wait for the answer to what was before. */
	int one = 1;
	CHECK(!setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
	CHECK((server = accept(listener, NULL, NULL)) >= 0);
	CHECK((other = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	mail = bound(SOCK_DGRAM);
	friend = bound(SOCK_DGRAM);
	joins(mail, friend);
	joins(friend, mail);
	CHECK((watch = epoll_create1(0)) >= 0);
	exchange(client, server, 3);
	correspond();
	mapped(&rings, &mailboxes);
	CHECK(!is_shared() || (rings > 0 && mailboxes > 0));
	struct epoll_event event = { EPOLLIN, { .u64 = 7 } }, events[8];
	CHECK(!epoll_ctl(watch, EPOLL_CTL_ADD, server, &event));

	cancels(WAYS[way].call, after_us);

	if (WAYS[way].is_mail) verify_mail();
	if (WAYS[way].fills) {
		/* Whatever it has sent is there, and nothing but that. */
		CHECK(!shutdown(client, SHUT_WR));
		for (ssize_t got; (got = recv(server, block, sizeof block, 0));) CHECK(got > 0);
	} else {
		char byte = 'y';
		CHECK(send(client, &byte, 1, 0) == 1);
		CHECK(epoll_wait(watch, events, 8, -1) == 1 && events[0].data.u64 == 7);
		struct pollfd fd = { server, POLLIN, 0 };
		CHECK(poll(&fd, 1, -1) == 1 && fd.revents == POLLIN);
		CHECK(recv(server, &byte, 1, 0) == 1 && byte == 'y');
		CHECK(epoll_wait(watch, events, 8, 0) == 0);
		exchange(client, server, 3);
		CHECK(send(client, block, 50000, 0) == 50000);
		take(server, 50000);
	}
	CHECK(!close(watch) && !close(client) && !close(server) && !close(other) && !close(mail) && !close(friend));
	mapped(&rings, &mailboxes);
	CHECK(rings == 0 && mailboxes == 0);
}

/* A listener that lets no connection in before it has accepted the one that is there. */
static void fill(int fillers[2]) {
	busy = bound(SOCK_STREAM);
	CHECK(!listen(busy, 0));
	struct sockaddr_in address = name_of(busy);
	for (int i = 0; i < 2; i++) {
		CHECK((fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0);
		CHECK(connect(fillers[i], (struct sockaddr *)&address, sizeof address) && errno == EINPROGRESS);
	}
	struct pollfd fd = { busy, POLLIN, 0 };
	CHECK(poll(&fd, 1, -1) == 1);
}

/* A connection on its way: it is given up, called for again, or waited for. */
static void connect_round(int after_us, const char *then) {
	int fillers[2], rings, mailboxes;
	fill(fillers);
	CHECK((early = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	cancels(by_connect, after_us);
	/* It was cancelled before it had called, or while it waited. */
	int is_on_its_way = name_of(early).sin_port != 0;
	CHECK(is_on_its_way || after_us < 10000);
	if (*then && is_on_its_way) {
		struct sockaddr_in own = name_of(early), from;
		/* The first one is let in, so that there is room. */
		CHECK(!close(fillers[0]) && !close(fillers[1]));
		struct pollfd arrived = { early, POLLOUT, 0 };
		socklen_t len = sizeof from;
		int in, error;
		while ((in = accept(busy, (struct sockaddr *)&from, &len)) >= 0 && from.sin_port != own.sin_port)
			CHECK(!close(in));
		CHECK(in >= 0);
		if (!strcmp(then, "again")) {
			joins(early, busy);
		} else {
			CHECK(poll(&arrived, 1, -1) == 1 && arrived.revents == POLLOUT);
			len = sizeof error;
			CHECK(!getsockopt(early, SOL_SOCKET, SO_ERROR, &error, &len) && !error);
		}
		client = early, server = in;
		exchange(client, server, 3);
		mapped(&rings, &mailboxes);
		CHECK(!is_shared() || rings > 0);
		CHECK(!close(early) && !close(in));
	} else {
		CHECK(!close(early) && !close(fillers[0]) && !close(fillers[1]));
	}
	CHECK(!close(busy));
	mapped(&rings, &mailboxes);
	CHECK(rings == 0 && mailboxes == 0);
}

/* How much of the file of statistics has ever been touched: it lies there, socket by socket. */
static long touched(void) {
	char path[1024];
	struct stat file;
	snprintf(path, sizeof path, "%s/stat.%d", getenv("ADVERB_SOCKETS_SHM_DIR"), getpid());
	return stat(path, &file) ? 0 : file.st_blocks * 512;
}

/* Says where it hangs, if it does. */
static void *watches(void *unused) {
	sleep(100);
	fail(0, "has not ended");
	return NULL;
}

/* How long a wait lasts until it is ended: while it spins, while it sleeps on a word, while it sleeps in the
 * kernel, and after it has looked up from that. Where no thread sleeps, the last two are like the one before. */
static const int AFTER_US[] = { 0, 30, 300, 10000, 60000, 300000 };
enum { AFTERS = sizeof AFTER_US / sizeof *AFTER_US, AFTERS_AWAKE = AFTERS - 2 };

static void ways(int share, int shares) {
	for (unsigned way = share; way < sizeof WAYS / sizeof *WAYS; way += shares) {
		doing = WAYS[way].name;
		int afters = WAYS[way].never_sleeps || never_sleeps() ? AFTERS_AWAKE : AFTERS;
		for (int i = 0; i < afters; i++) round_of(way, AFTER_US[i]);
	}
}

static void connects(void) {
	for (int i = 0; i < AFTERS; i++) connect_round(AFTER_US[i], "");
	long before = touched();
	for (int i = 0; i < 300; i++) connect_round(i % 4 * 200, "");
	CHECK(touched() - before <= 16384);
}

int main(int argc, char **argv) {
	pthread_t watchdog;
	CHECK(argc > 1 && !pthread_create(&watchdog, NULL, watches, NULL));
	CHECK(!sem_init(&ready, 0, 0) && !sem_init(&cleaned, 0, 0));
	listener = bound(SOCK_STREAM);
	CHECK(!listen(listener, 8));
	doing = argv[1];
	if (argc == 4) ways(atoi(argv[2]), atoi(argv[3]));
	else if (!strcmp(doing, "connect")) connects();
	else connect_round(10000, doing);
	puts("right");
	return 0;
}
