/*
 * A server sleeps until one of its clients has something for it, and then the client until it is answered.
 *
 *   bells poll|select|epoll|fresh|threads how   how the server waits, `fresh` on a new epoll instance each time; and
 *     rung    it is woken by bells, not by the kernel's streams
 *     ends    it is woken by the ends of connections, too
 *     killed  it hears that a client has been killed, however much the others have for it
 *     client  the same, though the client has closed descriptors that it had not opened, and has something else
 *             by their numbers
 *     server  it is woken somehow, though it has done so itself
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	fprintf(stderr, "%d, line %d: %s: %s\n", getpid(), line, what, strerror(errno));
	_exit(1);
}

#include <linux/tcp.h>

#include "ends.h"

/* A sleeper that is not woken looks for itself after 250 ms. */
/* Or, with nothing but connections that have rings, 20 ms after it has fallen asleep. */
enum { ENDS = 6, WARM = 60, ROUNDS = 240, LATE_MS = 200, LATE_MAX = 8, EARLY_MS = 10, KILLS = 8, KILLED_MS = 5000, FD_MIN = 100, FD_MAX = 1100, MAILS = 8 };
static int ends[ENDS], left = ENDS, watch = -1;
/*
 * When a connection has ended of which no sleeper knows yet, 0 if there is none; and for how long server and client had
 * waited for a processor by then.
 */
static volatile struct { double ended_ms, waited_ms; pid_t server, client; } *shared;
static const char *way, *how;

static int takes_over(const char *role) { return !strcmp(how, role); }

static void watch_all(void) {
	CHECK((watch = epoll_create1(0)) >= 0);
	for (int i = 0; i < ENDS; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.fd = ends[i] };
		CHECK(!epoll_ctl(watch, EPOLL_CTL_ADD, ends[i], &event));
	}
}

/* Descriptors that this program has not made. */
static int strange(void) {
	int count = 0;
	for (int fd = FD_MIN; fd < FD_MAX; fd++) count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

/* One client has something at a time, unless another is killed meanwhile. */
static int is_expected(int ready) { return ready == 1 || (ready > 1 && takes_over("killed")); }

/* One that can be read; each in its turn, if there are several. */
static int next_ready(void) {
	static int turn;
	turn++;
	if (!strcmp(way, "fresh")) {
		struct epoll_event event;
		watch_all();
		CHECK(epoll_wait(watch, &event, 1, -1) == 1);
		close(watch);
		return event.data.fd;
	}
	if (!strcmp(way, "epoll")) {
		struct epoll_event event;
		CHECK(epoll_wait(watch, &event, 1, -1) == 1);
		return event.data.fd;
	}
	if (!strcmp(way, "select")) {
		fd_set set;
		FD_ZERO(&set);
		for (int i = 0; i < left; i++) FD_SET(ends[i], &set);
		CHECK(is_expected(select(FD_SETSIZE, &set, NULL, NULL, NULL)));
		for (int i = 0; i < left; i++) {
			int end = ends[(turn + i) % left];
			if (FD_ISSET(end, &set)) return end;
		}
	}
	struct pollfd polled[ENDS];
	for (int i = 0; i < left; i++) polled[i] = (struct pollfd){ ends[i], POLLIN };
	CHECK(is_expected(poll(polled, left, -1)));
	for (int i = 0; i < left; i++)
		if (polled[(turn + i) % left].revents) return ends[(turn + i) % left];
	CHECK(!"something can be read");
	return -1;
}

/* Segments with bytes that the kernel's streams have brought. */
static unsigned brought(void) {
	unsigned all = 0;
	for (int i = 0; i < ENDS; i++) {
		struct tcp_info info;
		socklen_t len = sizeof info;
		CHECK(!getsockopt(ends[i], IPPROTO_TCP, TCP_INFO, &info, &len));
		all += info.tcpi_data_segs_in;
	}
	return all;
}

/*
 * Something else by every number that this program has not used: sockets with datagrams to be stolen, and
 * connections that take nothing for something sent.
 */
static void take_over(int stream) {
	int mail[2];
	CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, mail));
	for (int fd = FD_MIN; fd < FD_MAX; fd++) {
		if (fd % 3 == 0) close(fd);
		CHECK(dup2(fd % 2 ? stream : mail[0], fd) == fd);
	}
	for (int i = 0; i < MAILS; i++) CHECK(send(mail[1], &i, sizeof i, 0) == sizeof i);
}

static void still_there(void) {
	for (int i = 0, got; i < MAILS; i++)
		CHECK(recv(FD_MIN, &got, sizeof got, MSG_DONTWAIT) == sizeof got && got == i);
	char more;
	CHECK(recv(FD_MIN, &more, sizeof more, MSG_DONTWAIT) < 0);
}

static void answer(void) {
	char what;
	int fd = next_ready();
	CHECK(recv(fd, &what, 1, MSG_DONTWAIT) == 1);
	CHECK(send(fd, &what, 1, 0) == 1);
}

static double now_ms(void) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

/* For how long a process has waited for a processor, as far as the kernel counts that. */
static double waited_ms_of(pid_t process) {
	char path[64];
	unsigned long long ran_ns, waited_ns = 0;
	snprintf(path, sizeof path, "/proc/%d/schedstat", process);
	FILE *file = fopen(path, "r");
	if (file) {
		if (fscanf(file, "%llu %llu", &ran_ns, &waited_ns) != 2) waited_ns = 0;
		fclose(file);
	}
	return waited_ns / 1e6;
}

static double waited_ms(void) { return waited_ms_of(shared->server) + waited_ms_of(shared->client); }

static void *answers(void *mine) {
	int end = *(int *)mine;
	for (int i = 0; i < WARM + ROUNDS; i++) {
		struct pollfd both[2] = { { end, POLLIN }, { watch, POLLIN } };
		char what;
		CHECK(poll(both, 2, -1) == 1 && both[0].revents);
		CHECK(recv(end, &what, 1, MSG_DONTWAIT) == 1 && send(end, &what, 1, 0) == 1);
	}
	return NULL;
}

/* Answers until each connection has ended, which it hears of before it would look for itself. */
static void hear_ends(int listener, int rounds) {
	int late = 0;
	for (int round = 0; round < rounds; round++) {
		for (left = 0; left < ENDS; left++) CHECK((ends[left] = accept(listener, NULL, NULL)) >= 0);
		while (left) {
			char what;
			int fd = next_ready(), got = recv(fd, &what, 1, MSG_DONTWAIT);
			if (got == 1) {
				CHECK(send(fd, &what, 1, 0) == 1);
				continue;
			}
			CHECK(got == 0 || (errno == ECONNRESET && takes_over("killed")));
			double now = now_ms();
			late += shared->ended_ms && now - shared->ended_ms - (waited_ms() - shared->waited_ms) > EARLY_MS;
			shared->ended_ms = 0;
			for (int i = 0; i < left; i++)
				if (ends[i] == fd) ends[i] = ends[--left];
			close(fd);
		}
	}
	if (late > rounds * ENDS / 4 && takes_over("ends")) {
		fprintf(stderr, "%d of %d ends were heard late\n", late, rounds * ENDS);
		_exit(1);
	}
	_exit(0);
}

static void asks(int end) {
	char what = 'a';
	CHECK(send(end, &what, 1, 0) == 1 && recv(end, &what, 1, 0) == 1);
}

/* One of the clients is killed while the others have something for the server all the time. */
static void kill_one(int listener) {
	for (int round = 0; round < KILLS; round++) {
		int ready[2];
		char byte;
		CHECK(!pipe(ready));
		pid_t victim = fork();
		CHECK((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
		if (victim == 0) {
			joins(ends[0], listener);
			for (int i = 0; i < WARM; i++) asks(ends[0]);
			CHECK(write(ready[1], "r", 1) == 1);
			for (;;) pause();
		}
		close(ends[0]);
		for (int i = 1; i < ENDS; i++) {
			CHECK((ends[i] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
			joins(ends[i], listener);
		}
		CHECK(read(ready[0], &byte, 1) == 1);
		close(ready[0]);
		close(ready[1]);
		for (int i = 0; i < WARM * ENDS; i++) asks(ends[1 + i % (ENDS - 1)]);
		double start = now_ms();
		shared->ended_ms = start;
		CHECK(!kill(victim, SIGKILL) && wait(NULL) == victim);
		for (int i = 0; shared->ended_ms; i++) {
			asks(ends[1 + i % (ENDS - 1)]);
			CHECK(now_ms() - start < KILLED_MS);
		}
		for (int i = 1; i < ENDS; i++) close(ends[i]);
	}
	_exit(0);
}

static void end_all(int listener) {
	for (int round = 0; round < WARM; round++) {
		for (int i = 0; i < ENDS; i++) {
			CHECK((ends[i] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
			joins(ends[i], listener);
		}
		for (int i = 0; i < ENDS * ENDS; i++) {
			asks(ends[i % ENDS]);
		}
		for (int i = 0; i < ENDS; i++) {
			char what;
			usleep(1000);
			shared->waited_ms = waited_ms();
			shared->ended_ms = now_ms();
			CHECK(!shutdown(ends[i], SHUT_WR));
			CHECK(recv(ends[i], &what, 1, 0) == 0);
			close(ends[i]);
		}
	}
	_exit(0);
}

static void serve(int listener) {
	if (takes_over("ends")) hear_ends(listener, WARM);
	if (takes_over("killed")) hear_ends(listener, KILLS);
	int idle[2];
	CHECK(!pipe(idle));
	watch = idle[0];
	for (int i = 0; i < ENDS; i++) CHECK((ends[i] = accept(listener, NULL, NULL)) >= 0);
	if (!strcmp(way, "epoll")) watch_all();
	if (!strcmp(way, "threads")) {
		pthread_t threads[ENDS];
		for (int i = 0; i < ENDS; i++) CHECK(!pthread_create(&threads[i], NULL, answers, &ends[i]));
		for (int i = 0; i < ENDS; i++) CHECK(!pthread_join(threads[i], NULL));
		/* What came before there were rings is not known. */
		CHECK(brought() < ENDS * (WARM + ROUNDS / 3));
		_exit(0);
	}
	for (int i = 0; i < WARM * ENDS; i++) answer();
	unsigned before = brought();
	if (takes_over("server")) take_over(ends[0]);
	for (int i = 0; i < ROUNDS * ENDS; i++) answer();
	unsigned bytes = brought() - before;
	if (takes_over("server")) {
		still_there();
		_exit(0);
	}
	/* One by which it rings, and one by which it is rung. */
	CHECK(strange() <= 2);
	/* A machine that lets the server wait for a processor between its waits makes it some. */
	if (bytes > ROUNDS * ENDS / 3) {
		fprintf(stderr, "%u of %d came through the kernel\n", bytes, ROUNDS * ENDS);
		_exit(1);
	}
	_exit(0);
}

static void client(int listener) {
	if (takes_over("ends")) end_all(listener);
	if (takes_over("killed")) kill_one(listener);
	int late = 0;
	for (int i = 0; i < ENDS; i++) {
		CHECK((ends[i] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
		joins(ends[i], listener);
	}
	for (int round = 0; round < WARM + ROUNDS; round++) {
		if (round == WARM && takes_over("client")) take_over(ends[0]);
		for (int i = 0; i < ENDS; i++) {
			char what = 'a' + i;
			/* The other end has fallen asleep, most of the time. */
			usleep(200);
			double start = now_ms();
			CHECK(send(ends[i], &what, 1, 0) == 1);
			struct pollfd polled = { ends[i], POLLIN };
			CHECK(poll(&polled, 1, -1) == 1);
			CHECK(recv(ends[i], &what, 1, MSG_DONTWAIT) == 1 && what == 'a' + i);
			late += now_ms() - start > LATE_MS;
		}
	}
	if (takes_over("client")) still_there();
	if (late > LATE_MAX) {
		fprintf(stderr, "%d answers were late\n", late);
		_exit(1);
	}
	_exit(0);
}

int main(int argc, char **argv) {
	CHECK(argc == 3);
	way = argv[1];
	how = argv[2];
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	int listener = bound(SOCK_STREAM);
	CHECK(!listen(listener, ENDS));
	pid_t server = fork();
	if (server == 0) serve(listener);
	shared->server = server;
	pid_t other = fork();
	if (other == 0) {
		shared->client = getpid();
		client(listener);
	}
	int status, all = 0;
	for (int i = 0; i < 2; i++) {
		CHECK(wait(&status) > 0);
		all |= status;
		if (status) kill(server, SIGKILL), kill(other, SIGKILL);
	}
	return all != 0;
}
