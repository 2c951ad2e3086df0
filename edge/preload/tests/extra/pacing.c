/* Pacing: a rate that is set is kept. What took too long is no fault: the machine may be busy.
   pacing; or pacing bench ROUNDS KIND SIZE, which measures a second at 10 MB/s, and at a quarter and a half of what the socket
   carries without a rate: the least of several short runs. More than it carries no rate can give: a second after which a run
   without a rate is slower than the rate says nothing, and is measured again. */
#include "ends.h"

struct rate_limit { uint32_t rate, max_burst_sz; uint16_t typical_pkt_sz; };

static void *drink(void *at) {
	static __thread char sink[1 << 16];
	int fd = *(int *)at;
	while (recv(fd, sink, sizeof sink, 0) > 0) {}
	return NULL;
}

/* Sends `total` bytes in pieces, and returns how long it took, in ns. */
static uint64_t push(int fd, size_t total, size_t piece) {
	static char bytes[1 << 20];
	uint64_t start = now_ns(CLOCK_MONOTONIC);
	for (size_t sent = 0; sent < total;) {
		size_t rest = total - sent < piece ? total - sent : piece;
		ssize_t done = send(fd, bytes, rest, 0);
		CHECK(done > 0 || errno == EAGAIN);
		if (done > 0) sent += done;
	}
	return now_ns(CLOCK_MONOTONIC) - start;
}

static void try(int domain, int kind, int is_struct, int is_nonblocking) {
	int ends[2];
	pthread_t drinker;
	(kind == SOCK_DGRAM ? mail : stream)(domain, ends);
	warm_up(ends);
	pthread_create(&drinker, NULL, drink, &ends[1]);
	uint32_t rate = 20000000, burst = 20000;
	struct rate_limit limit = { rate / 125, burst, 1000 };
	if (is_struct) CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_MAX_PACING_RATE, &limit, sizeof limit));
	else CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
	uint64_t said = 0;
	socklen_t len = sizeof said;
	CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_MAX_PACING_RATE, &said, &len));
	CHECK(said == rate);
	if (is_nonblocking) fcntl(ends[0], F_SETFL, O_NONBLOCK);
	size_t total = 2000000;
	uint64_t took = push(ends[0], total, kind == SOCK_DGRAM ? 1400 : 300000);
	/* 100 ms but for the burst. The kernel paces its own TCP, and buffers what a program sends. */
	if (kind == SOCK_DGRAM || getenv("WANT_RINGS"))
		CHECK(took >= (total - 2 * burst) * 1000000000ull / rate);
	/* Without a limit there is none: what would take 50 s takes less, whatever else runs. */
	rate = ~0u;
	CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
	fcntl(ends[0], F_SETFL, 0);
	CHECK(push(ends[0], 10000000, 1400) < 50000000000ull);
	shutdown(ends[0], SHUT_RDWR);
	close(ends[0]);
	if (kind == SOCK_STREAM) pthread_join(drinker, NULL);
}

/* No stretch of time has more than the burst that was asked for, and what the rate allows in that time: a fifteenth more
   where time is made good that was lost by waking late. A machine that is busy makes each stretch longer. */
static void bursts(int domain, int kind, int is_nonblocking) {
	enum { CALLS = 600, SIZE = 1000, BURST = 10000, RATE = 20000000 };
	static uint64_t starts[CALLS], ends_at[CALLS];
	static char bytes[SIZE];
	int ends[2];
	pthread_t drinker;
	(kind == SOCK_DGRAM ? mail : stream)(domain, ends);
	warm_up(ends);
	pthread_create(&drinker, NULL, drink, &ends[1]);
	struct rate_limit limit = { RATE / 125, BURST, SIZE };
	CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_MAX_PACING_RATE, &limit, sizeof limit));
	if (is_nonblocking) fcntl(ends[0], F_SETFL, O_NONBLOCK);
	for (int call = 0; call < CALLS; call++) {
		if (call == CALLS / 2) usleep(20000); /* a pause fills no more than one burst */
		starts[call] = now_ns(CLOCK_MONOTONIC);
		for (size_t sent = 0; sent < SIZE;) {
			ssize_t now = send(ends[0], bytes, SIZE - sent, 0);
			CHECK(now > 0 || errno == EAGAIN);
			if (now > 0) sent += now;
		}
		ends_at[call] = now_ns(CLOCK_MONOTONIC);
	}
	for (int first = 0; first < CALLS; first++)
		for (int last = first; last < CALLS; last++) {
			double allowed = BURST + (ends_at[last] - starts[first]) * (RATE / 1e9) * 16 / 15;
			CHECK((last - first + 1) * (double)SIZE <= allowed + 1);
		}
	shutdown(ends[0], SHUT_RDWR);
	close(ends[0]);
	if (kind == SOCK_STREAM) pthread_join(drinker, NULL);
}

/* What is not sent costs nothing: neither what is too long, nor what finds that the last one was refused. */
static void unsent(int domain) {
	enum { SIZE = 1000 };
	static char bytes[70000];
	int ends[2], sent = 0, refused = 0;
	struct rate_limit limit = { 80, 10 * SIZE, SIZE }; /* ten datagrams a second */
	mail(domain, ends);
	warm_up(ends);
	CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_MAX_PACING_RATE, &limit, sizeof limit));
	for (int call = 0; call < 3; call++) CHECK(send(ends[0], bytes, sizeof bytes, MSG_DONTWAIT) < 0 && errno == EMSGSIZE);
	struct iovec part = { bytes, sizeof bytes };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	CHECK(sendmsg(ends[0], &message, MSG_DONTWAIT) < 0 && errno == EMSGSIZE);
	close(ends[1]);
	while (sent < 10) {
		if (send(ends[0], bytes, SIZE, MSG_DONTWAIT) == SIZE) sent++;
		else CHECK(errno == ECONNREFUSED && ++refused);
	}
	CHECK(refused >= 4);
	CHECK(send(ends[0], bytes, SIZE, MSG_DONTWAIT) < 0);
	close(ends[0]);
}

/* What has been sent in a while: bytes a second, and the most that any part of the while had above the rate, or above a fifteenth
   more, which makes good what was lost by waking late. */
struct flow { double bytes, burst; };

static struct flow flow(int kind, size_t size, uint64_t rate, double seconds) {
	static char bytes[1 << 20];
	int ends[2];
	pthread_t drinker;
	(kind == SOCK_DGRAM ? mail : stream)(AF_INET, ends);
	warm_up(ends);
	pthread_create(&drinker, NULL, drink, &ends[1]);
	if (rate) CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
	double per_ns = rate * 16 / 15 / 1e9, total = 0, lowest = 0, most = 0;
	uint64_t start = now_ns(CLOCK_MONOTONIC), now = start;
	do {
		/* Of all calls, this one is the best first one of a part. */
		double level = total - per_ns * (now - start);
		if (level < lowest) lowest = level;
		ssize_t done = send(ends[0], bytes, size, 0);
		CHECK(done > 0);
		total += done;
		now = now_ns(CLOCK_MONOTONIC);
		level = total - per_ns * (now - start);
		if (level - lowest > most) most = level - lowest;
	} while (now - start < seconds * 1e9);
	shutdown(ends[0], SHUT_RDWR);
	close(ends[0]);
	if (kind == SOCK_STREAM) pthread_join(drinker, NULL);
	return (struct flow){ total * 1e9 / (now - start), most };
}

/* Bytes a second that the socket carries without a rate, whatever else runs: the least of some short runs. */
static double carried(int kind, size_t size, int runs) {
	double least = 0;
	for (int run = 0; run < runs; run++) {
		double now = flow(kind, size, 0, .1).bytes;
		if (!run || now < least) least = now;
	}
	return least;
}

static int compare(const void *a, const void *b) {
	double left = *(const double *)a, right = *(const double *)b;
	return (left > right) - (left < right);
}

/* The burst that a rate allows that says nothing of bursts; see "Packet pacing" in docs/sockets.md. */
static double burst_of(double rate) {
	return rate / 1000 > 3000 ? rate / 1000 : 3000;
}

static void bench(int rounds, const char *kind, size_t size) {
	enum { RATES = 3, TRIES = 8 };
	static const char *const NAMES[RATES] = { "10 MB/s", "a quarter", "a half" };
	int type = kind[0] == 'u' ? SOCK_DGRAM : SOCK_STREAM, again[RATES] = { 0 };
	double *most = calloc(rounds, sizeof *most), *got[RATES], *bursts[RATES];
	for (int which = 0; which < RATES; which++)
		got[which] = calloc(rounds, sizeof(double)), bursts[which] = calloc(rounds, sizeof(double));
	for (int round = 0; round < rounds; round++)
		for (int which = 0; which < RATES; which++)
			for (int try = 0; try < TRIES; try++) {
				most[round] = carried(type, size, 5);
				uint64_t rate = which == 0 ? 10000000 : most[round] / (which == 1 ? 4 : 2);
				struct flow paced = flow(type, size, rate, 1);
				got[which][round] = paced.bytes / rate;
				bursts[which][round] = paced.burst / burst_of(rate);
				if (carried(type, size, 2) > rate * 1.2) break;
				again[which]++;
			}
	qsort(most, rounds, sizeof *most, compare);
	printf("%s %zu B without a rate, MB/s: %.4g (%.4g to %.4g)\n", kind, size, most[rounds / 2] / 1e6, most[0] / 1e6,
		most[rounds - 1] / 1e6);
	for (int which = 0; which < RATES; which++) {
		double *of = got[which], *burst = bursts[which];
		qsort(of, rounds, sizeof *of, compare), qsort(burst, rounds, sizeof *burst, compare);
		printf("%s %zu B of %s: %.4f (%.4f to %.4f); the largest burst has %.2f of what is allowed; %d measured again\n", kind,
			size, NAMES[which], of[rounds / 2], of[0], of[rounds - 1], burst[rounds - 1], again[which]);
		free(of), free(burst);
	}
	free(most);
}

int main(int count, char **arguments) {
	if (count > 4) {
		bench(atoi(arguments[2]), arguments[3], strtoul(arguments[4], NULL, 0));
		return 0;
	}
	for (int six = 0; six < 2; six++)
		for (int nonblocking = 0; nonblocking < 2; nonblocking++)
			for (int form = 0; form < 2; form++) {
				try(six ? AF_INET6 : AF_INET, SOCK_DGRAM, form, nonblocking);
				try(six ? AF_INET6 : AF_INET, SOCK_STREAM, form, nonblocking);
			}
	for (int six = 0; six < 2; six++)
		for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
			bursts(six ? AF_INET6 : AF_INET, SOCK_DGRAM, nonblocking);
			/* The kernel paces its own TCP. */
			if (getenv("WANT_RINGS")) bursts(six ? AF_INET6 : AF_INET, SOCK_STREAM, nonblocking);
		}
	unsent(AF_INET), unsent(AF_INET6);
	/* Nonsense is refused. */
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, NULL, 4) < 0 && errno == EFAULT);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, NULL, 12) < 0 && errno == EFAULT);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &fd, 2) < 0 && errno == EINVAL);
	return 0;
}
