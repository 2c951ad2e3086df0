/*
 * A peer ends in every way, with bytes unread and without, while this end waits for it or does nothing: what this end sees is
 * printed, and is the same whether rings carry the bytes or the kernel.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "line %d: %s: %m\n", __LINE__, #what); _exit(1); } } while (0)
#include "ends.h"

enum { TURNS = 20, PAUSE_US = 60000 };

static int listener, go[2], done[2], pipes, filled;
static pid_t child;

static void see(const char *call, ssize_t answer) {
	if (answer < 0) printf(" %s=%s", call, strerrorname_np(errno));
	else printf(" %s=%zd", call, answer);
}

static void see_events(const char *call, int events) {
	static const struct { int bit; const char *name; } names[] = {
		{ POLLIN, "in" }, { POLLOUT, "out" }, { POLLRDHUP, "rdhup" }, { POLLHUP, "hup" }, { POLLERR, "err" },
	};
	printf(" %s", call);
	for (int i = 0; i < 5; i++) if (events & names[i].bit) printf("-%s", names[i].name);
}

static void on_pipe(int signal) {
	pipes++;
}

/* Waits until the kernel has an end of the peer's, past the library. */
static void arrives(int fd, int events) {
	struct pollfd polled = { .fd = fd, .events = events };
	struct timespec limit = { .tv_sec = 2 };
	CHECK(syscall(SYS_ppoll, &polled, 1L, &limit, NULL, 8L) >= 0);
}

/* Waits until the peer sleeps to receive: just now, or for longer where rings are. */
static void falls_asleep(int is_long) {
	char path[64], text[16] = "";
	snprintf(path, sizeof path, "/proc/%d/syscall", child);
	for (int i = 0; i < 10000; i++) {
		usleep(1000);
		FILE *file = fopen(path, "r");
		int call = file && fgets(text, sizeof text, file) && *text != 'r' ? atoi(text) : SYS_write;
		if (file) CHECK(!fclose(file));
		if (call != SYS_write && call != SYS_read && call != SYS_sched_yield && (!is_long || call != SYS_futex)) return;
	}
	CHECK(!"asleep within ten seconds");
}

static void told(char what) {
	char byte;
	CHECK(write(go[1], &what, 1) == 1 && read(done[0], &byte, 1) == 1);
}

/* The peer, until it ends or is ended. */
static void live(void) {
	char byte;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	alarm(100);
	joins(fd, listener);
	for (int i = 0; i < TURNS; i++) CHECK(recv(fd, &byte, 1, 0) == 1 && send(fd, &byte, 1, 0) == 1);
	while (read(go[0], &byte, 1) == 1) {
		if (byte == 'l') CHECK(send(fd, "left", 4, 0) == 4);
		if (byte == 'c') CHECK(!close(fd));
		if (byte == 'e') _exit(0);
		CHECK(write(done[1], "x", 1) == 1);
		/* Asleep there, it has read everything. */
		if (byte == 'r') recv(fd, &byte, 1, 0);
	}
	for (;;) pause();
}

static void ends(char how) {
	if (how == 'c') return told('c');
	if (how == 'e') CHECK(write(go[1], "e", 1) == 1);
	else CHECK(!kill(child, SIGKILL));
	CHECK(waitpid(child, NULL, 0) == child);
}

/* Ends the peer soon, or once a connection is so full that a send waits. */
static void *ends_soon(void *how) {
	struct pollfd full = { .fd = filled, .events = POLLOUT };
	while (filled >= 0 && poll(&full, 1, 0) == 1 && full.revents & POLLOUT) usleep(1000);
	usleep(*(char *)how == 'K' ? PAUSE_US : 3000);
	ends(*(char *)how);
	return NULL;
}

/* `how` the peer ends (c: it closes, e: it exits, k: it is killed, K: later; w, r: it is killed where it waits for bytes), `unread`: it has not
 * read what it was sent, `left`: it has sent something before, and `when` this end looks. */
static void sees(char how, int unread, int left, const char *when) {
	static char bytes[65536], much[1 << 24];
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP };
	struct pollfd polled = { .events = POLLIN | POLLRDHUP };
	struct sockaddr_in there = name_of(listener);
	pthread_t ender;
	int error, fd, e = epoll_create1(0);
	socklen_t len = sizeof error;
	ssize_t got;
	char byte = 'x';
	pipes = 0;
	CHECK(!pipe(go) && !pipe(done) && (child = fork()) >= 0);
	if (!child) live();
	CHECK((fd = accept(listener, NULL, NULL)) >= 0);
	polled.fd = fd;
	for (int i = 0; i < TURNS; i++) CHECK(send(fd, &byte, 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1);
	printf("%s, %c%s%s:", when, how, unread ? ", unread" : "", left ? ", left" : "");
	if (left) told('l');
	if (unread) CHECK(send(fd, "unread", 6, 0) == 6);
	if (strchr("rw", how)) {
		told('r');
		falls_asleep(how == 'r');
	}
	int is_edge = !strcmp(when, "edge"), is_epoll = is_edge || !strcmp(when, "epoll");
	if (is_edge) event.events |= EPOLLET | EPOLLOUT;
	CHECK(!epoll_ctl(e, EPOLL_CTL_ADD, fd, &event));
	if (is_edge) CHECK(epoll_wait(e, &event, 1, 0) == 1);
	int waits = is_epoll || !strcmp(when, "recv") || !strcmp(when, "spin") || !strcmp(when, "poll") || !strcmp(when, "full") || !strcmp(when, "part");
	filled = strcmp(when, "part") ? -1 : fd;
	if (waits) {
		CHECK(!pthread_create(&ender, NULL, ends_soon, &how));
	} else {
		usleep(PAUSE_US);
		ends(how);
		arrives(fd, POLLRDHUP);
		usleep(PAUSE_US);
	}
	if (!strcmp(when, "recv")) see("recv", recv(fd, bytes, 10, 0));
	if (!strcmp(when, "spin")) {
		while ((got = recv(fd, bytes, 10, MSG_DONTWAIT)) < 0 && errno == EAGAIN) {}
		see("recv", got);
	}
	/* What is seen while a reset comes in may be a part of it. */
	if (!strcmp(when, "poll")) CHECK(poll(&polled, 1, 20000) == 1 && polled.revents & POLLIN);
	if (is_epoll) CHECK(epoll_wait(e, &event, 1, 20000) == 1 && event.events & EPOLLIN);
	if (!strcmp(when, "full")) {
		while (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) > 0) {}
		see("send", -1);
	}
	if (!strcmp(when, "part")) CHECK((got = send(fd, much, sizeof much, MSG_NOSIGNAL)) > 0 && got < sizeof much);
	if (waits) {
		CHECK(!pthread_join(ender, NULL));
		arrives(fd, POLLRDHUP);
	}
	if (!strcmp(when, "error")) {
		CHECK(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
		printf(" error=%s", error ? strerrorname_np(error) : "0");
	}
	if (!strcmp(when, "pipe")) {
		for (int i = 0; i < 3; i++) {
			see("send", send(fd, bytes, 1, 0));
			arrives(fd, 0);
		}
		see("pipes", pipes);
	}
	if (!strcmp(when, "many")) {
		int sends = 0;
		while ((got = send(fd, bytes, 1, MSG_NOSIGNAL)) == 1 && sends < 1000) sends += (usleep(1000), 1);
		see("few", sends < 1000);
		see("send", unread || got == 1 ? got : 0);
	}
	if (!strcmp(when, "send")) {
		see("send", send(fd, bytes, 1, MSG_NOSIGNAL));
		arrives(fd, 0);
		see("recv", recv(fd, bytes, 10, 0));
	}
	polled.events = POLLIN | POLLOUT | POLLRDHUP;
	CHECK(poll(&polled, 1, 0) >= 0);
	/* An error that a call has kept for the next one is none of the kernel's. */
	see_events("poll", polled.revents & ~(strcmp(when, "part") ? 0 : POLLERR));
	if (is_epoll && !is_edge) CHECK(epoll_wait(e, &event, 1, 0) == 1);
	if (is_epoll && !is_edge) see_events("epoll", event.events);
	see("recv", recv(fd, bytes, 10, 0));
	see("recv", recv(fd, bytes, 10, 0));
	see("send", send(fd, bytes, 1, MSG_NOSIGNAL));
	arrives(fd, 0);
	see("recv", recv(fd, bytes, 10, 0));
	CHECK(poll(&polled, 1, 0) >= 0);
	see_events("poll", polled.revents);
	see("connect", connect(fd, (struct sockaddr *)&there, sizeof there));
	printf("\n");
	CHECK(!close(fd) && !close(e));
	if (how == 'c') ends('k');
	for (int i = 0; i < 2; i++) CHECK(!close(go[i]) && !close(done[i]));
}

int main(int count, char **words) {
	CHECK(count == 2);
	setvbuf(stdout, NULL, _IOLBF, 0);
	listener = bound(SOCK_STREAM);
	CHECK(!listen(listener, 4));
	signal(SIGPIPE, on_pipe);
	alarm(110);
	/* Where something is left, to wait for more is another matter. A peer that was killed awake is not missed at once, and one that
	 * ends early has read all that came later. */
	int is_pipe = !strcmp(words[1], "pipe"), is_send = !strcmp(words[1], "send"), is_full = !strcmp(words[1], "full") || !strcmp(words[1], "part");
	int lefts = !strcmp(words[1], "later") || !strcmp(words[1], "recv") || !strcmp(words[1], "part");
	for (const char *how = is_pipe ? "ce" : is_send ? "cewr" : is_full ? "cekK" : "cekKwr"; *how; how++)
		for (int unread = is_full; unread < (strchr("wr", *how) ? 1 : 2); unread++)
			for (int left = 0; left <= lefts; left++) sees(*how, unread, left, words[1]);
	return 0;
}
