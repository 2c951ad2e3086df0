/* Receive callbacks: what the program sees before it receives, and what becomes of it. */
#include "ends.h"
#include <mellanox/vma_extra.h>

static struct vma_api_t *api;

/* What the callback of a socket has seen, and got. */
struct seen {
	int ends[2], count, is_stream, domain;
	void *held[64];
	struct iovec at[64];
	char bytes[64];
	int held_count;
	int calls_within;
};

static int has(struct iovec *iov, size_t count, size_t at) {
	for (size_t piece = 0; piece < count; at -= iov[piece++].iov_len)
		if (at < iov[piece].iov_len) return ((unsigned char *)iov[piece].iov_base)[at];
	return -1;
}

/* A packet says itself what is to become of it, by its first byte. */
static vma_recv_callback_retval_t look(int fd, size_t count, struct iovec iov[], struct vma_info_t *info, void *context) {
	struct seen *seen = context;
	size_t len = 0;
	CHECK(fd == seen->ends[1] && count <= 3 && info->struct_sz == sizeof *info);
	for (size_t piece = 0; piece < count; piece++) len += iov[piece].iov_len;
	CHECK(len == info->payload_sz && info->packet_id);
	struct sockaddr_storage from, to;
	socklen_t from_len = sizeof from, to_len = sizeof to;
	CHECK(!getsockname(seen->ends[0], (struct sockaddr *)&from, &from_len));
	CHECK(!getsockname(seen->ends[1], (struct sockaddr *)&to, &to_len));
	CHECK(!memcmp(info->src, &from, from_len) && !memcmp(info->dst, &to, to_len));
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	CHECK(info->sw_timestamp.tv_sec >= now.tv_sec - 1 && !info->hw_timestamp.tv_sec);
	seen->count++;
	/* All calls are allowed here. */
	char byte;
	CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	if (seen->calls_within) CHECK(send(fd, "back", 4, 0) == 4);
	int first = has(iov, count, 0);
	if (first == 'd') return VMA_PACKET_DROP;
	if (first != 'h') return VMA_PACKET_RECV;
	CHECK(count == 1 && seen->held_count < 64);
	seen->held[seen->held_count] = info->packet_id;
	seen->bytes[seen->held_count] = has(iov, count, 1);
	seen->at[seen->held_count++] = iov[0];
	return VMA_PACKET_HOLD;
}

static void say(struct seen *seen, const char *text) {
	if (getenv("WANT_RINGS")) CHECK(send(seen->ends[0], text, strlen(text), 0) == (ssize_t)strlen(text));
	else send_by_kernel(seen->ends, text, strlen(text), 0);
}

static int free_held(int fd, void *packet) {
	struct vma_packet_t *one = malloc(sizeof *one);
	one->packet_id = packet, one->sz_iov = 0;
	int answer = api->free_packets(fd, one, 1);
	free(one);
	return answer;
}

/* Ways to hear of a socket: 1 if it is ready within so long, 0 if not. */
static int by_poll(int fd, int ms, int *instance) {
	struct pollfd polled = { .fd = fd, .events = POLLIN };
	(void)instance;
	return poll(&polled, 1, ms);
}

static int by_select(int fd, int ms, int *instance) {
	fd_set set;
	FD_ZERO(&set);
	FD_SET(fd, &set);
	struct timeval time = { .tv_usec = ms * 1000 };
	(void)instance;
	return select(fd + 1, &set, NULL, NULL, &time);
}

static int by_epoll(int fd, int ms, int *instance) {
	struct epoll_event event;
	int count = epoll_wait(*instance, &event, 1, ms);
	CHECK(count <= 0 || (event.data.u64 == 0x1234567800000000ull + fd && event.events & EPOLLIN));
	return count;
}

typedef int (*way)(int fd, int ms, int *instance);

static void try_way(struct seen *seen, way ready, int events) {
	int fd = seen->ends[1], instance = epoll_create1(0), before = seen->count;
	char text[100];
	struct epoll_event event = { .events = EPOLLIN | events, .data.u64 = 0x1234567800000000ull + fd };
	CHECK(!epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event));
	int once = events & EPOLLONESHOT;
	CHECK(ready(fd, 0, &instance) == 0 && seen->count == before);
	say(seen, "drop");
	CHECK(ready(fd, 30, &instance) == 0 && seen->count == before + 1);
	say(seen, "recv");
	CHECK(ready(fd, 1000, &instance) == 1 && seen->count == before + 2);
	if (!events) CHECK(ready(fd, 0, &instance) == 1 && seen->count == before + 2);
	CHECK(recv(fd, text, sizeof text, MSG_PEEK) == 4 && recv(fd, text, sizeof text, 0) == 4 && !memcmp(text, "recv", 4));
	if (once) CHECK(!epoll_ctl(instance, EPOLL_CTL_MOD, fd, &event));
	/* One that is held is news once, and nothing to receive. */
	int held = seen->held_count;
	say(seen, "hold");
	CHECK(ready(fd, 1000, &instance) == 1 && seen->held_count == held + 1);
	CHECK(ready(fd, 0, &instance) == 0);
	CHECK(recv(fd, text, sizeof text, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	CHECK(seen->count == before + 3);
	if (once) CHECK(!epoll_ctl(instance, EPOLL_CTL_MOD, fd, &event));
	/* What is received in a call that polls nothing is looked at there. */
	say(seen, "drop");
	CHECK(recv(fd, text, sizeof text, MSG_DONTWAIT) < 0 && errno == EAGAIN && seen->count == before + 4);
	close(instance);
}

static void try_kind(int domain, int is_stream) {
	struct seen seen = { .is_stream = is_stream, .domain = domain };
	char text[100];
	if (is_stream) stream(domain, seen.ends);
	else mail(domain, seen.ends);
	/* Nothing waits for an acknowledgement of what was sent before it. */
	if (is_stream) CHECK(!setsockopt(seen.ends[0], IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
	warm_up(seen.ends);
	int fd = seen.ends[1];
	CHECK(!api->register_recv_callback(fd, look, &seen));
	say(&seen, "first");
	CHECK(recv(fd, text, 2, 0) == 2 && seen.count == 1);
	CHECK(recv(fd, text, sizeof text, MSG_DONTWAIT) == (is_stream ? 3 : -1) && seen.count == 1);
	/* A call that waits goes on until something is to be received, and no longer than it may. */
	struct timeval limit = { .tv_usec = 60000 };
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	say(&seen, "drop");
	uint64_t start = now_ns(CLOCK_MONOTONIC);
	CHECK(recv(fd, text, sizeof text, 0) < 0 && errno == EAGAIN && seen.count == 2);
	CHECK(now_ns(CLOCK_MONOTONIC) - start >= 55000000);
	limit.tv_usec = 0;
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	/* Several packets, one by one. */
	seen.count = 0;
	if (!is_stream) {
		say(&seen, "drop"), say(&seen, "one"), say(&seen, "hold"), say(&seen, ""), say(&seen, "drop"), say(&seen, "two");
		CHECK(recv(fd, text, sizeof text, 0) == 3 && !memcmp(text, "one", 3));
		CHECK(seen.count == 2);
		CHECK(recv(fd, text, sizeof text, 0) == 0 && recv(fd, text, sizeof text, 0) == 3 && !memcmp(text, "two", 3));
		CHECK(seen.count == 6 && seen.held_count == 1);
	} else {
		say(&seen, "one");
		CHECK(by_poll(fd, 1000, NULL) == 1 && seen.count == 1);
		say(&seen, "two");
		CHECK(recv(fd, text, sizeof text, MSG_DONTWAIT) == 6 && !memcmp(text, "onetwo", 6) && seen.count == 2);
		say(&seen, "all"), say(&seen, "of it");
		struct iovec parts[2] = { { text, 1 }, { text + 1, 7 } };
		struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
		CHECK(recvmsg(fd, &message, MSG_WAITALL) == 8 && !memcmp(text, "allof it", 8));
	}
	/* Without a copy, of what was admitted. */
	union { struct vma_packets_t said; char bytes[128]; } packets;
	int flags = 0, before = seen.count;
	say(&seen, "lend");
	CHECK(by_poll(fd, 1000, NULL) == 1);
	say(&seen, "drop");
	CHECK(api->recvfrom_zcopy(fd, &packets, sizeof packets, &flags, NULL, NULL) == 4 && flags & MSG_VMA_ZCOPY);
	flags = MSG_DONTWAIT;
	CHECK(api->recvfrom_zcopy(fd, packets.bytes + 64, 64, &flags, NULL, NULL) < 0 && errno == EAGAIN);
	CHECK(seen.count == before + 2 && !api->free_packets(fd, packets.said.pkts, 1));
	/* However it is waited for. */
	for (int events = 0; events < 3; events++)
		try_way(&seen, by_epoll, events == 0 ? 0 : events == 1 ? EPOLLET : EPOLLONESHOT);
	try_way(&seen, by_poll, 0), try_way(&seen, by_select, 0);
	/* What is held stays, and comes back in any order, once. */
	CHECK(seen.held_count >= 5);
	say(&seen, "hold"), say(&seen, "more");
	/* Of a stream it is one packet. */
	CHECK(recv(fd, text, sizeof text, is_stream ? MSG_DONTWAIT : 0) == (is_stream ? -1 : 4));
	for (int at = seen.held_count - 1; at >= 0; at--) {
		CHECK(!memcmp(seen.at[at].iov_base, "hold", 4) && seen.bytes[at] == 'o');
		CHECK(!free_held(fd, seen.held[at]));
		CHECK(free_held(fd, seen.held[at]) < 0 && errno == ENOENT);
	}
	/* The callback may send; and is not asked any more when it is taken away. */
	seen.calls_within = 1, seen.count = 0;
	say(&seen, "answer");
	CHECK(recv(fd, text, sizeof text, 0) == 6 && recv(seen.ends[0], text, sizeof text, 0) == 4 && seen.count == 1);
	CHECK(!api->register_recv_callback(fd, NULL, NULL));
	say(&seen, "drop");
	CHECK(recv(fd, text, sizeof text, 0) == 4 && seen.count == 1);
	/* The end of a stream is one. */
	CHECK(!api->register_recv_callback(fd, look, &seen));
	if (is_stream) {
		close(seen.ends[0]);
		CHECK(by_poll(fd, 1000, NULL) == 1 && recv(fd, text, sizeof text, 0) == 0 && recv(fd, text, sizeof text, 0) == 0);
		close(fd);
	} else {
		close(seen.ends[0]), close(fd);
	}
	/* A new socket of the same number has none. */
	int fresh[2];
	if (is_stream) stream(domain, fresh);
	else mail(domain, fresh);
	seen.count = 0;
	CHECK(send(fresh[0], "drop", 4, 0) == 4 && recv(fresh[1], text, sizeof text, 0) == 4 && seen.count == 0);
	close(fresh[0]), close(fresh[1]);
}

/* A stream of packets of all lengths: those that are admitted arrive, in order, with as many bytes as they had. */
static struct { uint64_t looked, dropped, admitted; } poured;

static vma_recv_callback_retval_t drop_some(int fd, size_t count, struct iovec iov[], struct vma_info_t *info, void *context) {
	(void)fd, (void)count, (void)iov, (void)context;
	poured.looked += info->payload_sz;
	if (poured.looked % 3 == 0) {
		poured.dropped += info->payload_sz;
		return VMA_PACKET_DROP;
	}
	poured.admitted += info->payload_sz;
	return VMA_PACKET_RECV;
}

static void *pour(void *fd) {
	static char bytes[20000];
	for (int round = 0; round < 3000; round++) CHECK(send(*(int *)fd, bytes, 1 + round * 37 % sizeof bytes, 0) > 0);
	shutdown(*(int *)fd, SHUT_WR);
	return NULL;
}

int main(void) {
	CHECK((api = vma_get_api()));
	CHECK(api->vma_extra_supported_mask & VMA_EXTRA_API_REGISTER_RECV_CALLBACK);
	CHECK(api->register_recv_callback(0, look, NULL) < 0 && errno == EINVAL);
	for (int six = 0; six < 2; six++)
		for (int is_stream = 0; is_stream < 2; is_stream++) try_kind(six ? AF_INET6 : AF_INET, is_stream);
	int ends[2];
	pthread_t thread;
	stream(AF_INET, ends);
	CHECK(!api->register_recv_callback(ends[1], drop_some, NULL));
	CHECK(!pthread_create(&thread, NULL, pour, &ends[0]));
	uint64_t got = 0, sent = 0;
	char into[3000];
	for (ssize_t len; (len = recv(ends[1], into, sizeof into, 0)) != 0; got += len) CHECK(len > 0);
	for (int round = 0; round < 3000; round++) sent += 1 + round * 37 % 20000;
	CHECK(poured.looked == sent && got == poured.admitted && poured.admitted + poured.dropped == sent);
	CHECK(!pthread_join(thread, NULL));
	return 0;
}
