/* SocketXtreme: everything that happens to sockets, said by one call.
   xtreme; or xtreme bench MESSAGES ROUNDS, which compares with epoll and recv in time, in turn; or
   xtreme tcp|udp ring|epoll MESSAGES, for callgrind to count what `counted` executes. */
#include "ends.h"
#include <mellanox/vma_extra.h>

static struct vma_api_t *api;

static int ring_of(int fd) {
	int ring = -1;
	CHECK(api->get_socket_rings_fds(fd, &ring, 1) == 1 && ring >= 0);
	return ring;
}

/* The next completion of a ring, within a while of this thread's own time: there may be no processor for it for longer. */
static struct vma_completion_t next(int ring) {
	struct vma_completion_t completion;
	uint64_t until = now_ns(CLOCK_THREAD_CPUTIME_ID) + 5000000000ull;
	int count;
	do {
		memset(&completion, 0xee, sizeof completion);
		CHECK((count = api->socketxtreme_poll(ring, &completion, 1, 0)) >= 0);
	} while (count == 0 && now_ns(CLOCK_THREAD_CPUTIME_ID) < until);
	CHECK(count == 1);
	return completion;
}

/* Nothing happens for a while. */
static void nothing(int ring) {
	struct vma_completion_t completion;
	for (int round = 0; round < 300; round++) CHECK(api->socketxtreme_poll(ring, &completion, 1, 0) == 0);
}

/* Looks at a packet: as long as it says, in as many buffers, of bytes that count from `first` on. */
static void is_packet(const struct vma_packet_desc_t *packet, unsigned first, size_t len) {
	size_t buffers = 0, at = 0;
	for (struct vma_buff_t *buffer = packet->buff_lst; buffer; buffer = buffer->next, buffers++)
		for (size_t byte = 0; byte < buffer->len; byte++, at++)
			CHECK(((unsigned char *)buffer->payload)[byte] == (unsigned char)(first + at));
	CHECK(buffers == packet->num_bufs && buffers && at == packet->total_len && at == len);
}

static unsigned char bytes[1 << 20];

/* Sends bytes that count, and receives them at the other end's ring. */
static void pass(int from, int to, int ring, size_t len) {
	CHECK(send(from, bytes, len, 0) == (ssize_t)len);
	for (size_t got = 0; got < len || !len;) {
		struct vma_completion_t completion = next(ring);
		CHECK(completion.events == VMA_SOCKETXTREME_PACKET && completion.user_data == (uint64_t)to);
		size_t now = completion.packet.total_len;
		is_packet(&completion.packet, got, now);
		CHECK(!api->socketxtreme_free_vma_packets(&completion.packet, 1));
		CHECK(api->socketxtreme_free_vma_packets(&completion.packet, 1) < 0 && errno == EINVAL);
		got += now;
		if (!len) break;
	}
}

/* A connection: the listener accepts by itself, and the peer that connects is told. */
static int joined(int domain, int ends[2]) {
	struct sockaddr_storage at;
	int listener = bound(domain, SOCK_STREAM, &at), ring = ring_of(listener), has_accepted = 0, has_connected = 0;
	CHECK(!listen(listener, 4));
	ends[0] = socket(domain, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(connect(ends[0], (struct sockaddr *)&at, length(&at)) < 0 && errno == EINPROGRESS);
	CHECK(ring_of(ends[0]) == ring);
	while (!has_accepted || !has_connected) {
		struct vma_completion_t completion = next(ring);
		if (completion.events == VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED) {
			CHECK(!has_accepted++ && completion.listen_fd == listener);
			ends[1] = completion.user_data;
			struct sockaddr_storage own;
			socklen_t len = sizeof own;
			CHECK(!getsockname(ends[0], (struct sockaddr *)&own, &len));
			if (domain == AF_INET) CHECK(!memcmp(&completion.src, &own, sizeof completion.src));
			else CHECK(completion.src.sin_family == domain && completion.src.sin_port == ((struct sockaddr_in6 *)&own)->sin6_port);
		} else {
			CHECK(completion.events == EPOLLOUT && completion.user_data == (uint64_t)ends[0] && !has_connected++);
		}
	}
	CHECK(ring_of(ends[1]) == ring);
	nothing(ring);
	CHECK(!close(listener));
	return ring;
}

static void try_stream(int domain) {
	int ends[2], ring = joined(domain, ends);
	for (int round = 0; round < 300; round++) {
		pass(ends[round & 1], ends[!(round & 1)], ring, 1 + round * 7);
		if (round % 50 == 0) pass(ends[0], ends[1], ring, 100000);
	}
	nothing(ring);
	/* What is called otherwise. */
	uint64_t name = 0x123456789abcdef0;
	CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_VMA_USER_DATA, &name, sizeof name));
	CHECK(send(ends[0], bytes, 9, 0) == 9);
	struct vma_completion_t first = next(ring);
	CHECK(first.events == VMA_SOCKETXTREME_PACKET && first.user_data == name);
	/* Buffers are kept for as long as they are referred to, whatever else comes and goes. */
	struct vma_buff_t *kept = first.packet.buff_lst;
	CHECK(api->socketxtreme_ref_vma_buff(kept) == 2 && api->socketxtreme_ref_vma_buff(kept) == 3);
	CHECK(!api->socketxtreme_free_vma_packets(&first.packet, 1));
	for (int round = 0; round < 50; round++) {
		CHECK(send(ends[0], bytes, 1000, 0) == 1000);
		for (size_t got = 0; got < 1000;) {
			struct vma_completion_t other = next(ring);
			is_packet(&other.packet, got, other.packet.total_len);
			got += other.packet.total_len;
			CHECK(!api->socketxtreme_free_vma_packets(&other.packet, 1));
		}
	}
	for (int byte = 0; byte < 9; byte++) CHECK(((unsigned char *)kept->payload)[byte] == byte);
	CHECK(api->socketxtreme_free_vma_buff(kept) == 1 && api->socketxtreme_free_vma_buff(kept) == 0);
	CHECK(api->socketxtreme_free_vma_buff(kept) < 0 && errno == EINVAL);
	CHECK(api->socketxtreme_ref_vma_buff(kept) < 0 && errno == EINVAL);
	/* An end is said once. */
	CHECK(send(ends[0], bytes, 5, 0) == 5 && !shutdown(ends[0], SHUT_WR));
	struct vma_completion_t last = next(ring);
	CHECK(last.events & VMA_SOCKETXTREME_PACKET);
	is_packet(&last.packet, 0, 5);
	if (!(last.events & EPOLLRDHUP)) {
		struct vma_completion_t end = next(ring);
		CHECK(end.events == (EPOLLIN | EPOLLRDHUP) && end.user_data == name);
	}
	nothing(ring);
	char byte;
	CHECK(recv(ends[1], &byte, 1, 0) == 0);
	close(ends[1]);
	is_packet(&last.packet, 0, 5); /* what is lent outlives the descriptor */
	CHECK(!api->socketxtreme_free_vma_packets(&last.packet, 1));
	CHECK(next(ring).events & EPOLLRDHUP);
	close(ends[0]);
	nothing(ring);
}

/* A connection that is refused, and one that is reset. */
static void try_failures(int domain) {
	struct sockaddr_storage at;
	int gone = bound(domain, SOCK_STREAM, &at);
	close(gone);
	int fd = socket(domain, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(connect(fd, (struct sockaddr *)&at, length(&at)) < 0 && errno == EINPROGRESS);
	int ring = ring_of(fd), error = 0;
	socklen_t len = sizeof error;
	struct vma_completion_t completion = next(ring);
	CHECK(completion.events & EPOLLERR && completion.events & EPOLLHUP && completion.user_data == (uint64_t)fd);
	CHECK(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) && error == ECONNREFUSED);
	nothing(ring);
	close(fd);
	int ends[2];
	ring = joined(domain, ends);
	pass(ends[0], ends[1], ring, 10), pass(ends[1], ends[0], ring, 10);
	struct linger reset = { 1, 0 };
	CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &reset, sizeof reset));
	close(ends[0]);
	completion = next(ring);
	CHECK(completion.events & EPOLLERR && completion.events & EPOLLHUP && completion.user_data == (uint64_t)ends[1]);
	char byte;
	CHECK(recv(ends[1], &byte, 1, 0) < 0 && errno == ECONNRESET);
	nothing(ring);
	close(ends[1]);
}

static void try_mail(int domain) {
	int ends[2];
	mail(domain, ends);
	int ring = ring_of(ends[1]);
	CHECK(ring == ring_of(ends[0]));
	struct sockaddr_storage own;
	for (int round = 0; round < 300; round++) {
		socklen_t len = sizeof own;
		CHECK(!getsockname(ends[0], (struct sockaddr *)&own, &len));
		CHECK(send(ends[0], bytes, round * 29, 0) == round * 29);
		struct vma_completion_t completion = next(ring);
		CHECK(completion.events == VMA_SOCKETXTREME_PACKET && completion.user_data == (uint64_t)ends[1]);
		if (domain == AF_INET) CHECK(!memcmp(&completion.src, &own, sizeof completion.src));
		is_packet(&completion.packet, 0, round * 29);
		CHECK(!api->socketxtreme_free_vma_packets(&completion.packet, 1));
		if (round % 3 == 0) pass(ends[1], ends[0], ring, 64);
	}
	/* What has come by then, by one call, in order. */
	for (int round = 0; round < 12; round++) CHECK(send(ends[0], bytes + round, 40, 0) == 40);
	struct vma_completion_t many[12];
	int taken = api->socketxtreme_poll(ring, many, 12, 0);
	if (getenv("WANT_RINGS")) CHECK(taken == 12);
	for (int at = 0; at < 12; at++) {
		if (at >= taken) many[at] = next(ring);
		CHECK(many[at].user_data == (uint64_t)ends[1]);
		is_packet(&many[at].packet, at, 40);
		CHECK(!api->socketxtreme_free_vma_packets(&many[at].packet, 1));
	}
	/* Several at a time, given back together, from both ends. */
	for (int round = 0; round < 8; round++) CHECK(send(ends[round & 1], bytes, 100, 0) == 100);
	struct vma_completion_t all[8];
	struct vma_packet_desc_t packets[8];
	int count = 0;
	while (count < 8) {
		int now = api->socketxtreme_poll(ring, all + count, 8 - count, 0);
		CHECK(now >= 0);
		count += now;
	}
	for (int at = 0; at < 8; at++) is_packet(&all[at].packet, 0, 100), packets[at] = all[at].packet;
	CHECK(!api->socketxtreme_free_vma_packets(packets, 8));
	nothing(ring);
	close(ends[0]), close(ends[1]);
}

/* Many sockets at one ring: each packet is said once, and sockets that are always busy do not keep a quiet one waiting,
   though a call says one thing only. */
static void try_crowd(int domain) {
	enum { PAIRS = 60, ROUNDS = 400 };
	int ends[PAIRS][2], sent[PAIRS] = { 0 }, got[PAIRS] = { 0 }, owner[1024] = { 0 };
	for (int pair = 0; pair < PAIRS; pair++) {
		mail(domain, ends[pair]);
		CHECK(ends[pair][1] < 1024);
		owner[ends[pair][1]] = pair + 1;
	}
	int ring = ring_of(ends[0][1]), all = 0;
	for (int round = 0; round < ROUNDS; round++) {
		struct vma_completion_t some[7];
		for (int pair = 0; pair < PAIRS; pair++)
			if (pair < 20 ? sent[pair] - got[pair] < 4 : round % 40 == pair % 40) {
				CHECK(send(ends[pair][0], bytes + sent[pair] % 256, 40, 0) == 40);
				sent[pair]++, all++;
			}
		int count = api->socketxtreme_poll(ring, some, 1 + round % 7, 0);
		CHECK(count >= 0);
		for (int at = 0; at < count; at++) {
			int pair = owner[some[at].user_data] - 1;
			CHECK(pair >= 0 && some[at].events == VMA_SOCKETXTREME_PACKET);
			is_packet(&some[at].packet, got[pair]++ % 256, 40);
			CHECK(!api->socketxtreme_free_vma_packets(&some[at].packet, 1));
		}
		all -= count;
	}
	while (all--) {
		struct vma_completion_t one = next(ring);
		int pair = owner[one.user_data] - 1;
		is_packet(&one.packet, got[pair]++ % 256, 40);
		CHECK(!api->socketxtreme_free_vma_packets(&one.packet, 1));
	}
	/* A quiet one, while twenty others have something at each call. */
	for (int pair = 0; pair < 20; pair++)
		for (int more = 0; more < 40; more++) CHECK(send(ends[pair][0], bytes, 40, 0) == 40);
	CHECK(send(ends[PAIRS - 1][0], bytes, 41, 0) == 41);
	for (int call = 0, is_there = 0; !is_there; call++) {
		CHECK(call < 400);
		struct vma_completion_t one = next(ring);
		is_there = owner[one.user_data] == PAIRS;
		is_packet(&one.packet, 0, is_there ? 41 : 40);
		CHECK(!api->socketxtreme_free_vma_packets(&one.packet, 1));
	}
	for (int pair = 0; pair < PAIRS; pair++) {
		CHECK(sent[pair] == got[pair] && sent[pair] > 0);
		close(ends[pair][0]), close(ends[pair][1]);
	}
	nothing(ring);
}

/* Two processes: one that is killed leaves a connection that ends. */
static void try_killed(void) {
	struct sockaddr_storage at;
	int listener = bound(AF_INET, SOCK_STREAM, &at), ring = ring_of(listener);
	CHECK(!listen(listener, 4));
	pid_t child = fork();
	if (!child) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(fd, (struct sockaddr *)&at, length(&at))) _exit(1);
		for (;;) {
			char text[64];
			if (send(fd, bytes, 64, 0) != 64 || recv(fd, text, 64, 0) <= 0) _exit(2);
		}
	}
	int fd = next(ring).user_data, packets = 0;
	for (;;) {
		struct vma_completion_t completion = next(ring);
		CHECK(completion.user_data == (uint64_t)fd);
		if (completion.events & VMA_SOCKETXTREME_PACKET) {
			CHECK(!api->socketxtreme_free_vma_packets(&completion.packet, 1));
			if (++packets == 2000) kill(child, SIGKILL);
			send(fd, bytes, 64, MSG_NOSIGNAL);
		}
		if (completion.events & EPOLLRDHUP) break;
	}
	CHECK(waitpid(child, NULL, 0) == child && packets >= 2000);
	close(fd), close(listener);
	nothing(ring);
}

static void try_nonsense(void) {
	struct vma_completion_t completion;
	int fd = bound(AF_INET, SOCK_DGRAM, &(struct sockaddr_storage){ 0 }), ring = ring_of(fd);
	CHECK(api->socketxtreme_poll(fd, &completion, 1, 0) < 0 && errno == EBADFD);
	CHECK(api->socketxtreme_poll(-1, &completion, 1, 0) < 0 && errno == EBADFD);
	CHECK(api->socketxtreme_poll(ring, NULL, 1, 0) < 0 && errno == EINVAL);
	CHECK(api->socketxtreme_poll(ring, &completion, 0, 0) < 0 && errno == EINVAL);
	struct vma_buff_t mine = { 0 };
	struct vma_packet_desc_t packet = { .num_bufs = 1, .buff_lst = &mine };
	CHECK(api->socketxtreme_free_vma_packets(NULL, 1) < 0 && errno == EINVAL);
	CHECK(api->socketxtreme_free_vma_packets(&packet, 1) < 0 && errno == EINVAL);
	CHECK(api->socketxtreme_free_vma_buff(&mine) < 0 && api->socketxtreme_free_vma_buff(NULL) < 0 && errno == EINVAL);
	CHECK(api->socketxtreme_ref_vma_buff(&mine) < 0 && api->socketxtreme_ref_vma_buff(NULL) < 0 && errno == EINVAL);
	close(fd);
}

static void pin(int processor) {
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(processor, &set);
	sched_setaffinity(0, sizeof set, &set);
}


/* Receives 64 bytes, in one way or the other, and sends them back. */
static void turn(int fd, int ring, int instance) {
	char text[64];
	if (ring >= 0) {
		struct vma_completion_t completion;
		int count;
		while ((count = api->socketxtreme_poll(ring, &completion, 1, 0)) == 0) {}
		if (count < 0 || !(completion.events & VMA_SOCKETXTREME_PACKET)) _exit(0);
		memcpy(text, completion.packet.buff_lst->payload, 64);
		api->socketxtreme_free_vma_packets(&completion.packet, 1);
	} else {
		struct epoll_event event;
		CHECK(epoll_wait(instance, &event, 1, -1) == 1);
		if (recv(fd, text, 64, 0) != 64) _exit(0);
	}
	if (send(fd, text, 64, MSG_NOSIGNAL) != 64) _exit(0);
}

static int compare(const void *a, const void *b) {
	double left = *(const double *)a, right = *(const double *)b;
	return (left > right) - (left < right);
}

/* Half round trips of 64 bytes in nanoseconds between two processes, both of which receive in the same way: the median
   of runs of 100, and what a tenth of them is below, which tells of a busy machine what it would do if it were idle. */
struct half { double median, low; };

static struct half half(int kind, int is_xtreme, int rounds) {
	enum { RUN = 100 };
	int runs = rounds / RUN;
	double *taken = calloc(runs, sizeof *taken);
	struct sockaddr_storage at, from = { 0 };
	struct epoll_event event = { .events = EPOLLIN };
	socklen_t len = sizeof from;
	int listener = bound(AF_INET, kind, &at), fd = listener, instance = epoll_create1(0);
	if (kind == SOCK_STREAM) CHECK(!listen(listener, 1));
	pid_t child = fork();
	if (!child) {
		pin(1);
		close(listener);
		int peer = socket(AF_INET, kind, 0), mine = epoll_create1(0);
		CHECK(!connect(peer, (struct sockaddr *)&at, length(&at)));
		if (!is_xtreme) CHECK(!epoll_ctl(mine, EPOLL_CTL_ADD, peer, &event));
		int ring = is_xtreme ? ring_of(peer) : -1;
		CHECK(send(peer, bytes, 64, 0) == 64);
		for (;;) turn(peer, ring, mine);
	}
	pin(0);
	int ring = is_xtreme ? ring_of(listener) : -1;
	struct pollfd polled = { .fd = listener, .events = POLLIN };
	if (!is_xtreme || kind == SOCK_DGRAM) CHECK(poll(&polled, 1, 5000) == 1);
	if (kind == SOCK_STREAM) fd = is_xtreme ? (int)next(ring).user_data : accept(listener, NULL, NULL);
	else CHECK(recvfrom(fd, bytes, 64, MSG_PEEK, (struct sockaddr *)&from, &len) == 64 && !connect(fd, (struct sockaddr *)&from, len));
	if (!is_xtreme) CHECK(!epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event));
	for (int run = -runs / 10; run < runs; run++) {
		uint64_t start = now_ns(CLOCK_MONOTONIC);
		for (int round = 0; round < RUN; round++) turn(fd, ring, instance);
		if (run >= 0) taken[run] = (now_ns(CLOCK_MONOTONIC) - start) / 2.0 / RUN;
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	close(fd), close(listener), close(instance);
	qsort(taken, runs, sizeof *taken, compare);
	struct half half = { taken[runs / 2], taken[runs / 10] };
	free(taken);
	return half;
}

/* As many receptions and answers, at both ends of one process. */
static __attribute__((noinline)) void counted(int ends[2], int rings[2], int instances[2], int rounds) {
	for (int round = 0; round < rounds; round++) turn(ends[!(round & 1)], rings[!(round & 1)], instances[!(round & 1)]);
}

/* What receiving and sending 64 bytes executes, by one way or the other. */
static void execute(int kind, int is_xtreme, int rounds) {
	int ends[2], rings[2] = { -1, -1 }, instances[2] = { epoll_create1(0), epoll_create1(0) };
	if (kind == SOCK_DGRAM) mail(AF_INET, ends);
	else if (is_xtreme) joined(AF_INET, ends);
	else stream(AF_INET, ends);
	for (int end = 0; end < 2; end++) {
		struct epoll_event event = { .events = EPOLLIN };
		if (is_xtreme) rings[end] = ring_of(ends[end]);
		else CHECK(!epoll_ctl(instances[end], EPOLL_CTL_ADD, ends[end], &event));
	}
	CHECK(send(ends[0], bytes, 64, 0) == 64);
	for (int round = 0; round < 1000; round++) turn(ends[!(round & 1)], rings[!(round & 1)], instances[!(round & 1)]);
	counted(ends, rings, instances, rounds);
}

/* Rounds of both ways in turn, and the medians of their ratios. */
static void bench(int messages, int rounds) {
	static const char *const NAMES[] = { "TCP", "UDP" };
	double *ratios[2] = { calloc(rounds, sizeof(double)), calloc(rounds, sizeof(double)) };
	for (int round = 0; round < rounds; round++)
		for (int which = 0; which < 2; which++) {
			int kind = which ? SOCK_DGRAM : SOCK_STREAM;
			struct half by_epoll = half(kind, 0, messages), by_xtreme = half(kind, 1, messages);
			ratios[which][round] = by_xtreme.median / by_epoll.median;
			printf("%s: epoll and recv %.0f ns, SocketXtreme %.0f ns: %.2f; in the best tenth %.0f and %.0f: %.2f\n",
				NAMES[which], by_epoll.median, by_xtreme.median, ratios[which][round], by_epoll.low, by_xtreme.low,
				by_xtreme.low / by_epoll.low);
		}
	for (int which = 0; which < 2; which++) {
		qsort(ratios[which], rounds, sizeof(double), compare);
		printf("%s: SocketXtreme takes %.2f of the time (%.2f to %.2f)\n", NAMES[which], ratios[which][rounds / 2],
			ratios[which][0], ratios[which][rounds - 1]);
		free(ratios[which]);
	}
}

/* Where something has come through the kernel, though there is a mailbox, the next call looks for more. */
static void try_kernels(int domain) {
	int ends[2];
	mail(domain, ends);
	int ring = ring_of(ends[1]);
	for (int round = 0; round < 64; round++) pass(ends[round & 1], ends[!(round & 1)], ring, 9);
	enum { COUNT = 8 }; /* with a flag that is the kernel's alone */
	for (int round = 0; round < COUNT; round++) send_by_kernel(ends, bytes, 9, MSG_DONTROUTE);
	for (int round = 0; round < COUNT; round++) {
		struct vma_completion_t completion;
		if (round) CHECK(api->socketxtreme_poll(ring, &completion, 1, 0) == 1);
		else completion = next(ring);
		is_packet(&completion.packet, 0, 9);
		CHECK(!api->socketxtreme_free_vma_packets(&completion.packet, 1));
	}
	nothing(ring);
	close(ends[0]), close(ends[1]);
}

int main(int count, char **arguments) {
	CHECK((api = vma_get_api()));
	for (size_t at = 0; at < sizeof bytes; at++) bytes[at] = at;
	uint64_t mask = VMA_EXTRA_API_SOCKETXTREME_POLL | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS |
		VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF;
	if (!getenv("VMA_SOCKETXTREME")) {
		CHECK(!(api->vma_extra_supported_mask & mask));
		CHECK(api->socketxtreme_poll(0, &(struct vma_completion_t){ 0 }, 1, 0) < 0 && errno == EOPNOTSUPP);
		CHECK(api->socketxtreme_free_vma_packets(NULL, 1) < 0 && errno == EOPNOTSUPP);
		CHECK(api->socketxtreme_ref_vma_buff(NULL) < 0 && errno == EOPNOTSUPP);
		CHECK(api->socketxtreme_free_vma_buff(NULL) < 0 && errno == EOPNOTSUPP);
		return 0;
	}
	CHECK((api->vma_extra_supported_mask & mask) == mask);
	if (count > 3 && strcmp(arguments[1], "bench")) {
		execute(strcmp(arguments[1], "tcp") ? SOCK_DGRAM : SOCK_STREAM, !strcmp(arguments[2], "ring"), atoi(arguments[3]));
		return 0;
	}
	if (count > 3) {
		bench(atoi(arguments[2]), atoi(arguments[3]));
		return 0;
	}
	for (int six = 0; six < 2; six++) {
		int domain = six ? AF_INET6 : AF_INET;
		try_stream(domain), try_failures(domain), try_mail(domain), try_kernels(domain), try_crowd(domain);
	}
	try_killed();
	try_nonsense();
	return 0;
}
