/* Time stamps: what is received through shared memory has them too, as the kernel would put them. */
#include "ends.h"
#include <linux/net_tstamp.h>

static const int OPTIONS[] = { SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING };

/* Receives a message, and finds the stamp of one kind: nanoseconds, 0 if there is none. */
static uint64_t stamp(int fd, int kind, size_t room, int *flags) {
	char text[64];
	union { char bytes[256]; struct cmsghdr align; } control;
	struct iovec part = { text, sizeof text };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = room };
	memset(&control, 0xee, sizeof control);
	CHECK(recvmsg(fd, &message, 0) == 5);
	*flags = message.msg_flags;
	for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
		if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != kind) continue;
		if (kind == SO_TIMESTAMP) {
			struct timeval time;
			CHECK(at->cmsg_len == CMSG_LEN(sizeof time));
			memcpy(&time, CMSG_DATA(at), sizeof time);
			return time.tv_sec * 1000000000ull + time.tv_usec * 1000;
		}
		struct timespec times[3] = { 0 };
		size_t len = kind == SO_TIMESTAMPING ? sizeof times : sizeof times[0];
		CHECK(at->cmsg_len == CMSG_LEN(len));
		memcpy(times, CMSG_DATA(at), len);
		/* There is no hardware here. */
		CHECK(!times[1].tv_sec && !times[1].tv_nsec && !times[2].tv_sec && !times[2].tv_nsec);
		return times[0].tv_sec * 1000000000ull + times[0].tv_nsec;
	}
	return 0;
}

static void try(int domain, int kind) {
	int ends[2], flags, in_ring = 0;
	(kind == SOCK_DGRAM ? mail : stream)(domain, ends);
	warm_up(ends);
	for (int which = 0; which < 3; which++) {
		int on = which < 2 ? 1 : SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
		CHECK(!setsockopt(ends[1], SOL_SOCKET, OPTIONS[which], &on, sizeof on));
		for (int round = 0; round < 60; round++) {
			uint64_t before = now_ns(CLOCK_REALTIME) / 1000 * 1000;
			CHECK(send(ends[0], "stamp", 5, 0) == 5);
			in_ring += !in_kernel(ends[1]);
			uint64_t when = stamp(ends[1], OPTIONS[which], 256, &flags);
			/* The kernel begins to stamp a little later than it is asked to. */
			if (!when && !getenv("WANT_RINGS")) continue;
			CHECK(when >= before && when <= now_ns(CLOCK_REALTIME));
			CHECK(!(flags & MSG_CTRUNC));
		}
		/* Too little room is said. */
		CHECK(send(ends[0], "stamp", 5, 0) == 5);
		CHECK(!stamp(ends[1], OPTIONS[which], 8, &flags));
		CHECK(flags & MSG_CTRUNC || !getenv("WANT_RINGS"));
		on = 0;
		CHECK(!setsockopt(ends[1], SOL_SOCKET, OPTIONS[which], &on, sizeof on));
		CHECK(send(ends[0], "stamp", 5, 0) == 5);
		CHECK(!stamp(ends[1], OPTIONS[which], 256, &flags));
	}
	/* Hardware alone gives nothing. */
	int hardware = SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE;
	CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_TIMESTAMPING, &hardware, sizeof hardware));
	CHECK(send(ends[0], "stamp", 5, 0) == 5);
	CHECK(!stamp(ends[1], SO_TIMESTAMPING, 256, &flags));
	if (getenv("WANT_RINGS")) CHECK(in_ring >= 150);
	close(ends[0]);
	close(ends[1]);
}

int main(void) {
	for (int six = 0; six < 2; six++) {
		try(six ? AF_INET6 : AF_INET, SOCK_DGRAM);
		try(six ? AF_INET6 : AF_INET, SOCK_STREAM);
	}
	return 0;
}
