/* SocketXtreme: what else is told of than packets and connections, and to which descriptor, process and thread. */
#include "ends.h"
#include <mellanox/vma_extra.h>

static struct vma_api_t *api;
static char bytes[1 << 16];

static int ring_of(int fd) {
	int ring = -1;
	CHECK(api->get_socket_rings_fds(fd, &ring, 1) == 1 && ring >= 0);
	return ring;
}

/* Whether there is a completion within a while, and which. It is a while of this thread's own time: on a busy machine it may
   have no processor for longer than any limit, and then it would have asked but once. */
static int within(int ring, struct vma_completion_t *completion, int ms) {
	uint64_t until = now_ns(CLOCK_THREAD_CPUTIME_ID) + ms * 1000000ull;
	int count;
	do {
		CHECK((count = api->socketxtreme_poll(ring, completion, 1, 0)) >= 0);
	} while (!count && now_ns(CLOCK_THREAD_CPUTIME_ID) < until);
	return count;
}

static struct vma_completion_t next(int ring) {
	struct vma_completion_t completion;
	CHECK(within(ring, &completion, 5000) == 1);
	return completion;
}

/* A packet of so many bytes, for a socket of that name. */
static void packet(int ring, int len, uint64_t name) {
	struct vma_completion_t completion = next(ring);
	CHECK(completion.events == VMA_SOCKETXTREME_PACKET && completion.packet.total_len == len && completion.user_data == name);
	CHECK(!api->socketxtreme_free_vma_packets(&completion.packet, 1));
}

static void nothing(int ring) {
	struct vma_completion_t completion;
	CHECK(within(ring, &completion, 30) == 0);
}

/* A connection, both ends of which are polled. */
static int joined(int domain, int ends[2]) {
	struct sockaddr_storage at;
	int listener = bound(domain, SOCK_STREAM, &at), ring = ring_of(listener);
	CHECK(!listen(listener, 4));
	ends[0] = socket(domain, SOCK_STREAM | SOCK_NONBLOCK, 0), ends[1] = -1;
	CHECK(connect(ends[0], (struct sockaddr *)&at, length(&at)) < 0 && errno == EINPROGRESS);
	for (int has_connected = 0; !has_connected || ends[1] < 0;) {
		struct vma_completion_t completion = next(ring);
		if (completion.events == VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED) ends[1] = completion.user_data;
		else CHECK(completion.events == EPOLLOUT && !has_connected++);
	}
	close(listener);
	return ring;
}

/* Two UDP sockets, or the ends of a connection, that know each other. */
static int acquainted(int domain, int kind, int ends[2]) {
	int ring = -1;
	if (kind == SOCK_STREAM) ring = joined(domain, ends);
	else mail(domain, ends), ring = ring_of(ends[0]);
	CHECK(ring_of(ends[1]) == ring);
	for (int round = 0; round < 64; round++) {
		CHECK(send(ends[round & 1], bytes, 10, 0) == 10);
		packet(ring, 10, ends[!(round & 1)]);
	}
	return ring;
}

/* A call that finds no room for all that it has is told when there is some: once, and only then. */
static void room(int domain, int is_acquainted) {
	int ends[2], ring = is_acquainted ? acquainted(domain, SOCK_STREAM, ends) : joined(domain, ends), told = 0;
	size_t sent = 0, got = 0;
	ssize_t now;
	while ((now = send(ends[0], bytes, sizeof bytes, MSG_DONTWAIT)) > 0) sent += now;
	CHECK(errno == EAGAIN);
	while (got < sent || !told) {
		struct vma_completion_t completion = next(ring);
		if (completion.events == EPOLLOUT) {
			CHECK(completion.user_data == (uint64_t)ends[0] && !told++ && got);
			continue;
		}
		CHECK(completion.events == VMA_SOCKETXTREME_PACKET && completion.user_data == (uint64_t)ends[1]);
		got += completion.packet.total_len;
		CHECK(!api->socketxtreme_free_vma_packets(&completion.packet, 1));
	}
	CHECK(got == sent && send(ends[0], bytes, 100, MSG_DONTWAIT) == 100);
	packet(ring, 100, ends[1]);
	nothing(ring);
	close(ends[0]), close(ends[1]);
}

/* A connection that the program has looked at, or used, before it was told that it has arrived: it is told all the same, and
   of what comes as well. */
static void early(int domain, int sends) {
	struct sockaddr_storage at;
	int listener = bound(domain, SOCK_STREAM, &at), ring = ring_of(listener), has_connected = 0, ends[2] = { -1, -1 };
	CHECK(!listen(listener, 4));
	ends[0] = socket(domain, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(connect(ends[0], (struct sockaddr *)&at, length(&at)) < 0 && errno == EINPROGRESS);
	struct pollfd polled = { .fd = ends[0], .events = POLLOUT };
	CHECK(poll(&polled, 1, -1) == 1 && polled.revents == POLLOUT);
	if (sends) CHECK(send(ends[0], bytes, 8, 0) == 8);
	for (int has_come = !sends; !has_connected || ends[1] < 0 || !has_come;) {
		struct vma_completion_t completion = next(ring);
		if (completion.events == VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED) {
			ends[1] = completion.user_data;
		} else if (completion.events == VMA_SOCKETXTREME_PACKET) {
			CHECK(!has_come++ && completion.user_data == (uint64_t)ends[1] && completion.packet.total_len == 8);
			CHECK(!api->socketxtreme_free_vma_packets(&completion.packet, 1));
		} else {
			CHECK(completion.events == EPOLLOUT && completion.user_data == (uint64_t)ends[0] && !has_connected++);
		}
	}
	CHECK(send(ends[1], bytes, 9, 0) == 9);
	packet(ring, 9, ends[0]);
	nothing(ring);
	close(listener), close(ends[0]), close(ends[1]);
	struct vma_completion_t completion;
	while (within(ring, &completion, 10)) {}
}

/* A datagram that is refused is an error, which is told of once and the program's to take; if it does not, what comes next
   is received all the same. */
static void refused(int domain) {
	struct sockaddr_storage gone, own;
	int closed = bound(domain, SOCK_DGRAM, &gone), fd = bound(domain, SOCK_DGRAM, &own), ring = ring_of(fd);
	int sender = socket(domain, SOCK_DGRAM, 0);
	close(closed);
	for (int takes = 0; takes < 3; takes++) {
		int error = 0;
		socklen_t len = sizeof error;
		CHECK(!connect(fd, (struct sockaddr *)&gone, length(&gone)) && send(fd, "x", 1, 0) == 1);
		struct vma_completion_t completion = next(ring);
		CHECK(completion.events == EPOLLERR && completion.user_data == (uint64_t)fd);
		if (takes == 0) CHECK(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) && error == ECONNREFUSED);
		if (takes == 1) CHECK(recv(fd, bytes, 1, MSG_DONTWAIT) < 0 && errno == ECONNREFUSED);
		nothing(ring);
	}
	struct sockaddr nowhere = { .sa_family = AF_UNSPEC };
	socklen_t len = sizeof own;
	CHECK(!connect(fd, &nowhere, sizeof nowhere) && sendto(fd, "x", 1, 0, (struct sockaddr *)&gone, length(&gone)) == 1);
	CHECK(!getsockname(fd, (struct sockaddr *)&own, &len));
	((struct sockaddr_in *)&gone)->sin_port = ((struct sockaddr_in *)&own)->sin_port;
	CHECK(sendto(sender, "more", 4, 0, (struct sockaddr *)&gone, length(&gone)) == 4);
	packet(ring, 4, fd);
	close(fd), close(sender);
}

/* A copy of a descriptor takes its place, under its own name, however the other one is closed. */
static void copies(int domain, int kind, int is_dup2) {
	int ends[2], ring = acquainted(domain, kind, ends), copy = dup(ends[1]);
	CHECK(copy >= 0 && send(ends[0], bytes, 3, 0) == 3);
	packet(ring, 3, ends[1]);
	if (is_dup2) CHECK(dup2(0, ends[1]) == ends[1]);
	else close(ends[1]);
	CHECK(send(ends[0], bytes, 4, 0) == 4);
	packet(ring, 4, copy);
	CHECK(ring_of(copy) == ring);
	close(copy);
	if (kind == SOCK_STREAM) CHECK(next(ring).events & EPOLLRDHUP);
	close(ends[0]);
	if (is_dup2) close(ends[1]);
	nothing(ring);
}

static void say(int pipe) { CHECK(write(pipe, "x", 1) == 1); }

static void hear(int pipe) {
	char byte;
	CHECK(read(pipe, &byte, 1) == 1);
}

/* A child polls the rings that it has of its parent, and the parent goes on afterwards. */
static void child(int domain, int kind) {
	int ends[2], ring = acquainted(domain, kind, ends), down[2], up[2], status;
	CHECK(!pipe(down) && !pipe(up));
	pid_t pid = fork();
	if (!pid) {
		packet(ring, 5, ends[1]);
		CHECK(send(ends[1], bytes, 2, 0) == 2);
		say(up[1]), hear(down[0]);
		packet(ring, 6, ends[1]);
		say(up[1]);
		_exit(0);
	}
	CHECK(send(ends[0], bytes, 5, 0) == 5);
	hear(up[0]);
	packet(ring, 2, ends[0]);
	CHECK(send(ends[0], bytes, 6, 0) == 6);
	say(down[1]), hear(up[0]);
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	for (int round = 0; round < 20; round++) {
		CHECK(send(ends[round & 1], bytes, 7, 0) == 7);
		packet(ring, 7, ends[!(round & 1)]);
	}
	nothing(ring);
	close(ends[0]), close(ends[1]);
	struct vma_completion_t completion;
	while (within(ring, &completion, 10)) {}
}

static int crowded;
static volatile int is_over;
static uint64_t crowd_got;

static void *drain(void *nothing) {
	(void)nothing;
	while (!is_over) {
		struct vma_completion_t some[4];
		int count = api->socketxtreme_poll(crowded, some, 4, 0);
		CHECK(count >= 0);
		for (int at = 0; at < count; at++) {
			if (!(some[at].events & VMA_SOCKETXTREME_PACKET)) continue;
			__sync_fetch_and_add(&crowd_got, some[at].packet.total_len);
			CHECK(!api->socketxtreme_free_vma_packets(&some[at].packet, 1));
		}
	}
	return NULL;
}

/* Threads that poll the same ring: each byte is told of once. */
static void threads(int domain) {
	enum { COUNT = 3 };
	int ends[2];
	uint64_t sent = 0, until = now_ns(CLOCK_MONOTONIC) + 60000000000ull;
	pthread_t all[COUNT];
	crowded = acquainted(domain, SOCK_STREAM, ends), crowd_got = 0, is_over = 0;
	for (int at = 0; at < COUNT; at++) CHECK(!pthread_create(&all[at], NULL, drain, NULL));
	for (int round = 0; round < 10000; round++) {
		ssize_t now = send(ends[0], bytes, 1 + round * 7 % 3000, MSG_DONTWAIT);
		if (now > 0) sent += now;
		else sched_yield();
	}
	while (__sync_fetch_and_add(&crowd_got, 0) < sent && now_ns(CLOCK_MONOTONIC) < until) usleep(100);
	/* What is told of twice may come last. */
	usleep(30000);
	is_over = 1;
	for (int at = 0; at < COUNT; at++) CHECK(!pthread_join(all[at], NULL));
	CHECK(crowd_got == sent);
	close(ends[0]), close(ends[1]);
	struct vma_completion_t completion;
	while (within(crowded, &completion, 10)) {}
}

static void *close_own(void *ring) {
	unsigned fd = *(int *)ring;
	CHECK(!close_range(fd, fd, CLOSE_RANGE_UNSHARE));
	return NULL;
}

/* A ring that a thread closes among descriptors of its own stays the others'. */
static void unshared(int domain) {
	int ends[2], ring = acquainted(domain, SOCK_STREAM, ends);
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, close_own, &ring) && !pthread_join(thread, NULL));
	CHECK(ring_of(ends[0]) == ring && send(ends[0], bytes, 5, 0) == 5);
	packet(ring, 5, ends[1]);
	close(ends[0]), close(ends[1]);
	struct vma_completion_t completion;
	while (within(ring, &completion, 10)) {}
}

/* The manual's example: a server that a device's name binds. */
static void example(void) {
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = inet_addr("127.0.0.1") };
	socklen_t len = sizeof at;
	int fd = socket(AF_INET, SOCK_STREAM, IPPROTO_IP), ring = -1;
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2) || errno == EPERM);
	CHECK(!bind(fd, (struct sockaddr *)&at, sizeof at));
	api->get_socket_rings_fds(fd, &ring, 1);
	CHECK(ring != -1);
	listen(fd, 5);
	CHECK(!getsockname(fd, (struct sockaddr *)&at, &len));
	pid_t pid = fork();
	if (!pid) _exit(!!connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&at, len));
	struct vma_completion_t completion = next(ring);
	CHECK(completion.events & VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED && completion.listen_fd == fd);
	CHECK(completion.src.sin_family == AF_INET && completion.src.sin_addr.s_addr == at.sin_addr.s_addr);
	int client = completion.user_data;
	completion = next(ring);
	CHECK(completion.events & EPOLLRDHUP && completion.user_data == (uint64_t)client);
	CHECK(waitpid(pid, NULL, 0) == pid);
	close(client), close(fd);
}

int main(void) {
	CHECK((api = vma_get_api()));
	for (int six = 0; six < 2; six++) {
		int domain = six ? AF_INET6 : AF_INET;
		early(domain, 0), early(domain, 1), room(domain, 0), room(domain, 1), refused(domain), threads(domain), unshared(domain);
		for (int kind = SOCK_STREAM; kind <= SOCK_DGRAM; kind++) copies(domain, kind, 0), copies(domain, kind, 1), child(domain, kind);
	}
	example();
	return 0;
}
