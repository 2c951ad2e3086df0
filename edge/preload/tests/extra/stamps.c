/* Time stamps: what is received through shared memory has them too, as the kernel would put them. */
#include "ends.h"
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

/* The options by their older numbers, and by their newer ones (asm-generic/socket.h). */
enum { OLD_MICRO = 29, OLD_NANO = 35, OLD_KINDS = 37, NEW_MICRO = 63, NEW_NANO = 64, NEW_KINDS = 65 };
static const int OPTIONS[] = { OLD_MICRO, OLD_NANO, OLD_KINDS, NEW_MICRO, NEW_NANO, NEW_KINDS };

/* Receives a message, by one call or another, and finds the stamp of one kind: nanoseconds, 0 if there is none. */
static uint64_t stamp(int fd, int kind, size_t room, int *flags) {
	char text[64];
	union { char bytes[256]; struct cmsghdr align; } control;
	struct iovec part = { text, sizeof text };
	struct mmsghdr several = { { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = room } };
	static int turn;
	memset(&control, 0xee, sizeof control);
	if (turn++ & 1) CHECK(recvmmsg(fd, &several, 1, 0, NULL) == 1 && several.msg_len == 5);
	else CHECK(recvmsg(fd, &several.msg_hdr, 0) == 5);
	struct msghdr message = several.msg_hdr;
	*flags = message.msg_flags;
	for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
		if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != kind) continue;
		if (kind == OLD_MICRO || kind == NEW_MICRO) {
			struct timeval time;
			CHECK(at->cmsg_len == CMSG_LEN(sizeof time));
			memcpy(&time, CMSG_DATA(at), sizeof time);
			return time.tv_sec * 1000000000ull + time.tv_usec * 1000;
		}
		struct timespec times[3] = { 0 };
		size_t len = kind == OLD_KINDS || kind == NEW_KINDS ? sizeof times : sizeof times[0];
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
	for (int which = 0; which < 6; which++) {
		int on = which % 3 < 2 ? 1 : SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
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
	if (getenv("WANT_RINGS")) CHECK(in_ring >= 300);
	close(ends[0]);
	close(ends[1]);
}

/* The time of the last datagram, which a program may ask for instead. */
static void ask(int domain) {
	int ends[2];
	char byte;
	struct timeval time;
	mail(domain, ends);
	warm_up(ends);
	/* The kernel begins to stamp when it is first asked, and that may take it a moment; from then on it stamps each. */
	ioctl(ends[1], SIOCGSTAMP, &time);
	for (int stamped = 0, round = 0; stamped < 50; round++) {
		uint64_t before = now_ns(CLOCK_REALTIME) / 1000;
		CHECK(send(ends[0], "x", 1, 0) == 1 && recv(ends[1], &byte, 1, 0) == 1);
		int is_known = !ioctl(ends[1], SIOCGSTAMP, &time);
		uint64_t when = time.tv_sec * 1000000ull + time.tv_usec;
		if (is_known) CHECK(when <= now_ns(CLOCK_REALTIME) / 1000);
		int is_stamped = is_known && when >= before;
		CHECK(is_stamped || !stamped);
		CHECK(is_stamped || round < 100000);
		stamped += is_stamped;
	}
	close(ends[0]), close(ends[1]);
}

int main(void) {
	for (int six = 0; six < 2; six++) {
		try(six ? AF_INET6 : AF_INET, SOCK_DGRAM);
		try(six ? AF_INET6 : AF_INET, SOCK_STREAM);
		ask(six ? AF_INET6 : AF_INET);
	}
	return 0;
}
