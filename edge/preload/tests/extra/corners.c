/* Corners of the extra functions: callbacks and dummies by every call, in families, and options on what has none. */
#include "ends.h"
#include <mellanox/vma_extra.h>

static struct vma_api_t *api;

/* What the callback decides, and what it has seen and held. */
static struct { vma_recv_callback_retval_t wish; int count; size_t total; void *held[64]; int held_count; } looked;

static vma_recv_callback_retval_t look(int fd, size_t count, struct iovec iov[], struct vma_info_t *info, void *context) {
	size_t len = 0;
	(void)fd, (void)context;
	for (size_t piece = 0; piece < count; piece++) len += iov[piece].iov_len;
	CHECK(len == info->payload_sz);
	looked.count++, looked.total += len;
	if (looked.wish == VMA_PACKET_HOLD && looked.held_count < 64) looked.held[looked.held_count++] = info->packet_id;
	return looked.wish;
}

/* Many are held, and come back together, in another order. */
static void held(const int ends[2]) {
	enum { COUNT = 50 };
	static char bytes[200];
	size_t total = 0;
	struct pollfd polled = { .fd = ends[1], .events = POLLIN };
	looked.wish = VMA_PACKET_HOLD, looked.total = looked.held_count = 0;
	for (int at = 0; at < COUNT; total += 100 + at++) {
		CHECK(send(ends[0], bytes, 100 + at, 0) == 100 + at);
		CHECK(poll(&polled, 1, 5000) == 1 && recv(ends[1], bytes, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	}
	CHECK(looked.total == total && looked.held_count == COUNT);
	struct vma_packet_t *back = calloc(COUNT, sizeof *back);
	for (int at = 0; at < COUNT; at++) back[at].packet_id = looked.held[(at * 7 + 3) % COUNT];
	CHECK(!api->free_packets(ends[1], back, COUNT));
	CHECK(api->free_packets(ends[1], back, 1) < 0 && errno == ENOENT);
	free(back);
}

/* What a callback does to its own socket: it goes away, or closes it. */
static struct { int ends[2], closes, count; vma_recv_callback_retval_t wish; } within;

static vma_recv_callback_retval_t change(int fd, size_t count, struct iovec iov[], struct vma_info_t *info, void *context) {
	(void)count, (void)iov, (void)info, (void)context;
	within.count++;
	if (within.closes) CHECK(!close(fd));
	else CHECK(!api->register_recv_callback(fd, NULL, NULL));
	return within.wish;
}

static void *hello(void *unused) {
	usleep(20000);
	CHECK(send(within.ends[0], "later", 5, 0) == 5);
	return unused;
}

/* A callback that takes itself away, whatever it decides, leaves a call as it is without one; after a close nothing is
   looked at any more. */
static void changes(int domain, int is_stream, int closes, int lends, vma_recv_callback_retval_t wish) {
	char text[128] = "";
	int flags = MSG_VMA_ZCOPY_FORCE;
	pthread_t thread;
	(is_stream ? stream : mail)(domain, within.ends);
	warm_up(within.ends);
	within.closes = closes, within.wish = wish, within.count = 0;
	CHECK(!api->register_recv_callback(within.ends[1], change, NULL));
	CHECK(send(within.ends[0], "hello", 5, 0) == 5);
	if (wish == VMA_PACKET_DROP && !closes) {
		struct pollfd polled = { .fd = within.ends[1], .events = POLLIN };
		if (lends) CHECK(poll(&polled, 1, 200) == 0);
		CHECK(!pthread_create(&thread, NULL, hello, NULL));
	}
	ssize_t got = lends ? api->recvfrom_zcopy(within.ends[1], text, sizeof text, &flags, NULL, NULL) : recv(within.ends[1], text, sizeof text, 0);
	if (closes) CHECK(got < 0 && errno == EBADF);
	else CHECK(got == 5);
	const char *bytes = lends && !closes ? ((struct vma_packets_t *)text)->pkts[0].iov[0].iov_base : text;
	if (!closes) CHECK(!memcmp(bytes, wish == VMA_PACKET_DROP ? "later" : "hello", 5));
	CHECK(within.count == 1);
	if (wish == VMA_PACKET_DROP && !closes) pthread_join(thread, NULL);
	close(within.ends[0]), close(within.ends[1]);
}

/* Every call that receives gets what the callback leaves to it. */
static void received(const int ends[2]) {
	char text[10];
	struct iovec part = { text, sizeof text };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &part, .msg_iovlen = 1 } };
	looked.wish = VMA_PACKET_RECV;
	for (int call = 0; call < 6; call++) {
		ssize_t got = -1;
		CHECK(send(ends[0], "hello", 5, 0) == 5);
		switch (call) {
		case 0: got = read(ends[1], text, sizeof text); break;
		case 1: got = readv(ends[1], &part, 1); break;
		case 2: got = recv(ends[1], text, sizeof text, 0); break;
		case 3: got = recvfrom(ends[1], text, sizeof text, 0, NULL, NULL); break;
		case 4: got = recvmsg(ends[1], &message.msg_hdr, 0); break;
		case 5: got = recvmmsg(ends[1], &message, 1, 0, NULL) == 1 ? (ssize_t)message.msg_len : -1; break;
		}
		CHECK(got == 5 && !memcmp(text, "hello", 5));
	}
}

/* A child has its parent's callback, and its end takes nothing from its parent. */
static void dropped_by_child(const int ends[2]) {
	char byte;
	int status;
	struct timeval limit = { .tv_usec = 200000 }, none = { 0 };
	looked.wish = VMA_PACKET_DROP, looked.count = 0;
	CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	pid_t pid = fork();
	if (!pid) {
		while (!looked.count) CHECK(recv(ends[1], &byte, 1, 0) < 0 && errno == EAGAIN);
		exit(0);
	}
	CHECK(send(ends[0], "gone", 4, 0) == 4);
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
	CHECK(!api->register_recv_callback(ends[1], NULL, NULL));
}

/* Every call that sends sends nothing, if there is shared memory, also after a child that had it has ended. */
static void dummies(const int ends[2], int is_stream) {
	char byte, text[10] = "";
	struct iovec part = { text, sizeof text };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct sockaddr_storage at;
	socklen_t len = sizeof at;
	CHECK(!getpeername(ends[0], (struct sockaddr *)&at, &len));
	warm_up(ends);
	for (int call = 0; call < 4 + !is_stream; call++) {
		ssize_t sent = 0;
		switch (call) {
		case 0: sent = send(ends[0], text, sizeof text, VMA_SND_FLAGS_DUMMY); break;
		case 1: sent = send(ends[0], text, sizeof text, VMA_SND_FLAGS_DUMMY | MSG_DONTWAIT); break;
		case 2: sent = sendto(ends[0], text, sizeof text, VMA_SND_FLAGS_DUMMY, NULL, 0); break;
		case 3: sent = sendmsg(ends[0], &message, VMA_SND_FLAGS_DUMMY); break;
		case 4: sent = sendto(ends[0], text, sizeof text, VMA_SND_FLAGS_DUMMY, (struct sockaddr *)&at, len); break;
		}
		if (getenv("WANT_RINGS")) CHECK(sent == sizeof text);
		else CHECK(sent < 0 && errno == EINVAL);
	}
	CHECK(recv(ends[1], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
}

static void try(int domain, int is_stream) {
	int ends[2];
	(is_stream ? stream : mail)(domain, ends);
	warm_up(ends);
	CHECK(!api->register_recv_callback(ends[1], look, NULL));
	for (int way = 0; way < 8; way++)
		changes(domain, is_stream, way & 1, way >> 1 & 1, way & 4 ? VMA_PACKET_DROP : VMA_PACKET_RECV);
	held(ends), received(ends), dropped_by_child(ends), dummies(ends, is_stream);
	close(ends[0]), close(ends[1]);
	CHECK(send(ends[0], "x", 1, VMA_SND_FLAGS_DUMMY) < 0);
}

/* Options are refused to what is no socket, and to a socket in the wrong state. */
static void options(void) {
	int pipes[2], one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	uint64_t name = 1, got = 0;
	void *pointer = &one;
	socklen_t len = sizeof got;
	CHECK(!pipe(pipes));
	CHECK(setsockopt(pipes[0], SOL_SOCKET, SO_VMA_USER_DATA, &name, sizeof name) < 0 && errno == ENOTSOCK);
	CHECK(setsockopt(-1, SOL_SOCKET, SO_VMA_USER_DATA, &name, sizeof name) < 0 && errno == EBADF);
	CHECK(setsockopt(pipes[0], SOL_SOCKET, SO_VMA_FLOW_TAG, &one, sizeof one) < 0 && errno == ENOTSOCK);
	CHECK(setsockopt(999, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &one, sizeof one) < 0 && errno == EBADF);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &one, sizeof one) < 0 && errno == ENOTCONN);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, NULL, 4) < 0 && errno == EFAULT);
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &pointer, sizeof pointer));
	CHECK(!getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &got, &len) && len == sizeof got && got == (uintptr_t)pointer);
	len = 4;
	CHECK(getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &got, &len) < 0 && errno == EINVAL);
	close(fd), close(pipes[0]), close(pipes[1]);
	/* A rate is said back as it was set, in each form. */
	for (int kind = SOCK_STREAM; kind <= SOCK_DGRAM; kind++) {
		struct vma_rate_limit_t limit = { 80000, 30000, 1000 };
		uint64_t eight = 123456789012;
		uint32_t four = 0;
		fd = socket(AF_INET, kind, 0);
		CHECK(!setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &limit, sizeof limit));
		len = sizeof four;
		CHECK(!getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &four, &len) && len == sizeof four && four == 10000000);
		CHECK(!setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &eight, sizeof eight));
		eight = 0, len = sizeof eight;
		CHECK(!getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &eight, &len) && len == sizeof eight && eight == 123456789012);
		close(fd);
	}
}

/* Sockets come, are given to children that end without a word, and go: there is a place for the next. */
static void places(void) {
	struct sockaddr_storage at, from;
	int reader = bound(AF_INET, SOCK_DGRAM, &at), status;
	CHECK(!fcntl(reader, F_SETFD, FD_CLOEXEC));
	for (int turn = 0; turn < 70; turn++) {
		int sender = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		char byte = 'p';
		CHECK(sender >= 0 && !connect(sender, (struct sockaddr *)&at, length(&at)));
		for (int round = 0; round < 32; round++) {
			socklen_t len = sizeof from;
			CHECK(send(sender, &byte, 1, 0) == 1);
			CHECK(recvfrom(reader, &byte, 1, 0, (struct sockaddr *)&from, &len) == 1);
			CHECK(sendto(reader, &byte, 1, 0, (struct sockaddr *)&from, len) == 1);
			CHECK(recv(sender, &byte, 1, 0) == 1);
		}
		if (getenv("WANT_RINGS")) CHECK(send(sender, "x", 1, VMA_SND_FLAGS_DUMMY) == 1);
		pid_t pid = fork();
		if (!pid && turn & 1) execl("/bin/true", "true", NULL);
		if (!pid) kill(getpid(), SIGKILL);
		CHECK(waitpid(pid, &status, 0) == pid);
		if (getenv("WANT_RINGS")) CHECK(send(sender, "x", 1, VMA_SND_FLAGS_DUMMY) == 1);
		close(sender);
	}
	close(reader);
}

int main(void) {
	CHECK((api = vma_get_api()) && vma_get_api() == api);
	for (int six = 0; six < 2; six++) try(six ? AF_INET6 : AF_INET, 0), try(six ? AF_INET6 : AF_INET, 1);
	options(), places();
	return 0;
}
