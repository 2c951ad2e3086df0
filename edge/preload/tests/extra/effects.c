/* Parameters: what one of them changes, in a word on the standard output.
   effects WHAT */
#include "ends.h"
#include <mellanox/vma_extra.h>
#include <dirent.h>
#include <pty.h>
#include <sys/resource.h>

static int option(int fd, int level, int name) {
	int value = -1;
	socklen_t len = sizeof value;
	CHECK(!getsockopt(fd, level, name, &value, &len));
	return value;
}

/* Of a socket, and of one that was accepted: they agree. */
static void of_streams(int level, int name) {
	int ends[2], fresh = socket(AF_INET6, SOCK_STREAM, 0);
	stream(AF_INET, ends);
	printf("%d %d %d\n", option(fresh, level, name), option(ends[0], level, name), option(ends[1], level, name));
}

static void loop(void) {
	int four = socket(AF_INET, SOCK_DGRAM, 0), six = socket(AF_INET6, SOCK_DGRAM, 0);
	printf("%d %d\n", option(four, IPPROTO_IP, IP_MULTICAST_LOOP), option(six, IPPROTO_IPV6, IPV6_MULTICAST_LOOP));
}

static void buffer(void) {
	int fd = socket(AF_INET, SOCK_DGRAM, 0), little = 4096;
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little));
	printf("%d\n", option(fd, SOL_SOCKET, SO_RCVBUF));
}

static void algorithm(void) {
	char name[32] = "";
	socklen_t len = sizeof name;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len));
	puts(name);
}

/* The longest segment that either end sends. */
static void segment(void) {
	int ends[2];
	stream(AF_INET, ends);
	printf("%d %d\n", option(ends[0], IPPROTO_TCP, TCP_MAXSEG) <= 1000, option(ends[1], IPPROTO_TCP, TCP_MAXSEG) <= 1000);
}

/* Whether the kernel acknowledges at once, after an exchange. */
static void quick(void) {
	int ends[2];
	stream(AF_INET, ends);
	warm_up(ends);
	char byte;
	CHECK(send(ends[0], "x", 1, 0) == 1 && recv(ends[1], &byte, 1, 0) == 1);
	printf("%d\n", option(ends[1], IPPROTO_TCP, TCP_QUICKACK));
}

/* How often this thread has gone to sleep. */
static long sleeps(void) {
	struct rusage usage;
	CHECK(!getrusage(RUSAGE_THREAD, &usage));
	return usage.ru_nvcsw;
}

/* How waits are spent that are over after a while: spinning, or asleep. */
static void waits(int by_poll) {
	int ends[2];
	char byte;
	mail(AF_INET, ends);
	struct timeval limit = { .tv_usec = 20000 };
	CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	enum { ROUNDS = 20 };
	long before = sleeps();
	for (int round = 0; round < ROUNDS; round++) {
		struct pollfd polled = { .fd = ends[0], .events = POLLIN };
		if (by_poll) CHECK(poll(&polled, 1, 20) == 0);
		else CHECK(recv(ends[0], &byte, 1, 0) < 0 && errno == EAGAIN);
	}
	puts(sleeps() - before < ROUNDS / 2 ? "spins" : "sleeps");
}

/* The same of a socket that has joined a group. */
static void waits_for_group(void) {
	int fd = bound(AF_INET, SOCK_DGRAM, &(struct sockaddr_storage){ 0 });
	char byte;
	struct timeval limit = { .tv_usec = 20000 };
	struct ip_mreq group = { .imr_multiaddr.s_addr = inet_addr("239.7.7.7"), .imr_interface.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	for (int joined = 0; joined < 2; joined++) {
		enum { ROUNDS = 10 };
		long before = sleeps();
		for (int round = 0; round < ROUNDS; round++) CHECK(recv(fd, &byte, 1, 0) < 0 && errno == EAGAIN);
		printf("%s%c", sleeps() - before < ROUNDS / 2 ? "spins" : "sleeps", joined ? '\n' : ' ');
		if (!joined) CHECK(!setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group));
	}
}

static void pin(void) {
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(sched_getcpu(), &set);
	CHECK(!sched_setaffinity(0, sizeof set, &set));
}

static volatile int is_over;

static void *work(void *spent) {
	while (!is_over) {}
	*(uint64_t *)spent = now_ns(CLOCK_THREAD_CPUTIME_ID);
	return NULL;
}

/* Whether a thread that spins lets another one run that wants its processor. */
static void yields(void) {
	int ends[2];
	char byte;
	pthread_t worker;
	uint64_t others, own;
	mail(AF_INET, ends);
	struct timeval limit = { .tv_usec = 300000 };
	CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	pin();
	own = now_ns(CLOCK_THREAD_CPUTIME_ID);
	CHECK(!pthread_create(&worker, NULL, work, &others));
	CHECK(recv(ends[0], &byte, 1, 0) < 0 && errno == EAGAIN);
	own = now_ns(CLOCK_THREAD_CPUTIME_ID) - own;
	is_over = 1;
	CHECK(!pthread_join(worker, NULL));
	puts(own * 3 < others ? "yields" : "takes");
}

/* How many rings five sockets have, each of which is to have its own. */
static void rings(void) {
	struct vma_api_t *api = vma_get_api();
	int found[5], different = 0;
	CHECK(api);
	for (int at = 0; at < 5; at++) {
		int fd = bound(AF_INET, SOCK_DGRAM, &(struct sockaddr_storage){ 0 }), is_new = 1;
		CHECK(api->get_socket_rings_fds(fd, &found[at], 1) == 1);
		for (int other = 0; other < at; other++) is_new &= found[other] != found[at];
		different += is_new;
	}
	printf("%d\n", different);
}

/* How many calls that find a ring ready it takes until one says what the kernel has, too. */
static void skips(void) {
	int ends[2], pipes[2], calls = 0, count;
	struct epoll_event events[4], want = { .events = EPOLLIN };
	stream(AF_INET, ends);
	warm_up(ends);
	CHECK(!pipe(pipes));
	int instance = epoll_create1(0);
	CHECK(!epoll_ctl(instance, EPOLL_CTL_ADD, ends[1], &want) && !epoll_ctl(instance, EPOLL_CTL_ADD, pipes[0], &want));
	CHECK(send(ends[0], "x", 1, 0) == 1);
	while (epoll_wait(instance, events, 4, 1000) != 1) {}
	CHECK(write(pipes[1], "x", 1) == 1);
	do {
		CHECK((count = epoll_wait(instance, events, 4, 1000)) >= 1);
	} while (++calls < 500 && count < 2);
	printf("%s\n", calls <= 1 ? "at once" : calls < 20 ? "soon" : "late");
}

static int written[2];
static clockid_t of_caller;
static uint64_t before_ns;

static void *writes(void *unused) {
	usleep(5000);
	before_ns = now_ns(of_caller);
	CHECK(write(written[1], "x", 1) == 1);
	return unused;
}

static int compare(const void *a, const void *b) {
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
	return (left > right) - (left < right);
}

/* How long a call spins, by its thread's own time, until it sees what the kernel alone knows of: the median of some calls. */
static void ratio(void) {
	enum { ROUNDS = 15 };
	int ends[2];
	uint64_t spent_ns[ROUNDS];
	stream(AF_INET, ends);
	warm_up(ends);
	CHECK(!pipe(written) && !pthread_getcpuclockid(pthread_self(), &of_caller));
	for (int round = 0; round < ROUNDS; round++) {
		struct pollfd polled[2] = { { .fd = ends[1], .events = POLLIN }, { .fd = written[0], .events = POLLIN } };
		pthread_t writer;
		char byte;
		CHECK(!pthread_create(&writer, NULL, writes, NULL));
		CHECK(poll(polled, 2, 20000) == 1 && polled[1].revents == POLLIN && !polled[0].revents);
		uint64_t seen_ns = now_ns(of_caller);
		CHECK(!pthread_join(writer, NULL) && read(written[0], &byte, 1) == 1);
		spent_ns[round] = seen_ns - before_ns;
	}
	qsort(spent_ns, ROUNDS, sizeof *spent_ns, compare);
	puts(spent_ns[ROUNDS / 2] < 200000 ? "soon" : "late");
}

/* A call that spins in vain; how often it has looked is in the log. */
static void looks(void) {
	int ends[2];
	char byte;
	struct timeval limit = { .tv_usec = 50000 };
	mail(AF_INET, ends);
	warm_up(ends);
	CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	CHECK(recv(ends[1], &byte, 1, 0) < 0 && errno == EAGAIN);
}

/* What a mailbox has no room for: dropped in silence, or said. */
static void full(void) {
	static char bytes[1000];
	int ends[2];
	mail(AF_INET, ends);
	warm_up(ends);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	for (int sent = 0; sent < 100000; sent++)
		if (send(ends[0], bytes, sizeof bytes, 0) < 0) {
			CHECK(errno == EAGAIN);
			puts("said");
			return;
		}
	puts("silent");
}

/* Whether the log on a terminal has colours. */
static void colours(char *self) {
	int master, slave;
	char said[1 << 16];
	size_t len = 0;
	ssize_t got;
	CHECK(!openpty(&master, &slave, NULL, NULL, NULL));
	pid_t child = fork();
	if (!child) {
		dup2(slave, 2);
		close(master), close(slave);
		setenv("VMA_RX_POL", "1", 1); /* of which it warns */
		execl(self, self, "nothing", NULL);
		_exit(1);
	}
	close(slave);
	while (len < sizeof said && (got = read(master, said + len, sizeof said - len)) > 0) len += got;
	CHECK(waitpid(child, NULL, 0) == child && len > 0);
	puts(memchr(said, 27, len) ? "coloured" : "plain");
}

/* What getsockname() does besides: a dummy, which is counted; and files of statistics. */
static void asked_for_name(void) {
	int ends[2];
	struct sockaddr_storage at;
	socklen_t len = sizeof at;
	stream(AF_INET, ends);
	warm_up(ends);
	for (int round = 0; round < 7; round++) CHECK(!getsockname(ends[0], (struct sockaddr *)&at, &len));
	close(ends[0]);
	DIR *shown = opendir(getenv("VMA_STATS_SHMEM_DIR"));
	for (struct dirent *file; shown && (file = readdir(shown));) puts(file->d_name);
}

int main(int count, char **arguments) {
	CHECK(count > 1);
	const char *what = arguments[1];
	int is = 0;
#define IS(name) (is |= !strcmp(what, name), !strcmp(what, name))
	if (IS("nothing")) close(socket(AF_INET, SOCK_STREAM, 0));
	if (IS("nodelay")) of_streams(IPPROTO_TCP, TCP_NODELAY);
	if (IS("quick")) quick();
	if (IS("algorithm")) algorithm();
	if (IS("segment")) segment();
	if (IS("loop")) loop();
	if (IS("buffer")) buffer();
	if (IS("receive")) waits(0);
	if (IS("poll")) waits(1);
	if (IS("group")) waits_for_group();
	if (IS("yields")) yields();
	if (IS("rings")) rings();
	if (IS("ratio")) ratio();
	if (IS("skips")) skips();
	if (IS("looks")) looks();
	if (IS("full")) full();
	if (IS("colours")) colours(arguments[0]);
	if (IS("name")) asked_for_name();
	if (IS("crash")) close(socket(AF_INET, SOCK_STREAM, 0)), *(volatile int *)(uintptr_t)count = 1;
	CHECK(is);
	return 0;
}
