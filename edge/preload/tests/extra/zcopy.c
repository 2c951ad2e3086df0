/* Reading without a copy: loans of rings and mailboxes, given back in any order.
   zcopy; or zcopy bench SECONDS ROUNDS, which compares with recv(), in turn; or zcopy pass recv|lent|kept, which passes a
   stream. */
#include "ends.h"
#include <mellanox/vma_extra.h>

static struct vma_api_t *api;

/* Room for a packet of one piece. */
enum { PIECE_ROOM = sizeof(struct vma_packets_t) + sizeof(struct vma_packet_t) + sizeof(struct iovec) };

union packets {
	struct vma_packets_t said;
	char bytes[128];
};

/* Receives without a copy: the packet, or nothing. */
static int lend(int fd, union packets *packets, int flags) {
	return api->recvfrom_zcopy(fd, packets, sizeof *packets, (flags |= MSG_VMA_ZCOPY_FORCE, &flags), NULL, NULL);
}

/* Looks at a packet's bytes: each is its number since the start of the stream. */
static void is_from(const union packets *packets, size_t from, size_t len) {
	const struct vma_packet_t *packet = packets->said.pkts;
	CHECK(packets->said.n_packet_num == 1 && packet->packet_id && packet->sz_iov <= 3);
	size_t at = 0;
	for (size_t piece = 0; piece < packet->sz_iov; piece++) {
		struct iovec part;
		memcpy(&part, &packet->iov[piece], sizeof part);
		for (size_t byte = 0; byte < part.iov_len; byte++, at++)
			CHECK(((unsigned char *)part.iov_base)[byte] == (unsigned char)((from + at) * 7 >> 3));
	}
	CHECK(at == len);
}

static size_t fill(unsigned char *bytes, size_t from, size_t len) {
	for (size_t at = 0; at < len; at++) bytes[at] = (from + at) * 7 >> 3;
	return len;
}

/* Datagrams: several are out, and come back in another order. */
static void try_mail(int domain) {
	static unsigned char bytes[9000];
	int ends[2], flags;
	mail(domain, ends);
	warm_up(ends);
	for (int round = 0; round < 500; round++) {
		union packets packets[8];
		int lens[8];
		for (int at = 0; at < 8; at++) {
			lens[at] = round * 131 * (at + 1) % 2000 + (at == 3 ? 6000 : 0);
			CHECK(send(ends[0], bytes, fill(bytes, at, lens[at]), 0) == lens[at]);
		}
		for (int at = 0; at < 8; at++) {
			if (at == 5) { /* One is copied in between. */
				CHECK(recv(ends[1], bytes, sizeof bytes, 0) == lens[at]);
				continue;
			}
			CHECK(lend(ends[1], &packets[at], 0) == lens[at]);
		}
		CHECK(recv(ends[1], bytes, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
		for (int step = 0; step < 8; step++) {
			int at = (step * 3 + round) % 8;
			if (at == 5) continue;
			is_from(&packets[at], at, lens[at]);
			CHECK(!api->free_packets(ends[1], packets[at].said.pkts, 1));
			CHECK(api->free_packets(ends[1], packets[at].said.pkts, 1) < 0 && errno == ENOENT);
		}
	}
	/* A program that gives nothing back gets no more than there is room for, and what it has stays. */
	static union packets kept[100000];
	int count = 0;
	while (count < 100000) {
		if (send(ends[0], bytes, fill(bytes, count, 1000), MSG_DONTWAIT) < 0) break;
		if (lend(ends[1], &kept[count], MSG_DONTWAIT) < 0) break;
		count++;
		if (count > 3000) break;
	}
	CHECK(count > 20);
	for (int at = 0; at < count; at++) is_from(&kept[at], at, 1000);
	for (int at = count; at-- > 0;) CHECK(!api->free_packets(ends[1], kept[at].said.pkts, 1));
	CHECK(send(ends[0], bytes, fill(bytes, 5, 100), 0) == 100);
	while ((flags = recv(ends[1], bytes, sizeof bytes, 0)) != 100) CHECK(flags > 0);
	close(ends[0]);
	close(ends[1]);
}

/* A stream: what is not given back is no room. */
static void try_stream(int domain) {
	static unsigned char bytes[100000];
	static union packets kept[4096];
	int ends[2];
	size_t sent = 0, got = 0, freed = 0, lent_at[4096], lens[4096];
	stream(domain, ends);
	warm_up(ends);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	/* Keeps all until the sender has no room, several times. */
	for (int round = 0; round < 20; round++) {
		int first = 0, count = 0, stuck = 0;
		/* Through the kernel nothing holds the sender back. */
		while (stuck < 3 && count < (getenv("WANT_RINGS") ? 4096 : 200)) {
			ssize_t done = send(ends[0], bytes, fill(bytes, sent, 1000 + sent % 30000), 0);
			if (done > 0) sent += done;
			union packets *next = &kept[count];
			int len = lend(ends[1], next, MSG_DONTWAIT);
			if (len > 0) {
				lens[count] = len;
				lent_at[count++] = got;
				got += len;
			}
			if (done < 0 && len < 0) stuck++;
		}
		/* Through the kernel it takes a moment. */
		while (got < sent && count < 4096) {
			int len = lend(ends[1], &kept[count], 0);
			CHECK(len > 0);
			lens[count] = len;
			lent_at[count++] = got;
			got += len;
			CHECK(!getenv("WANT_RINGS"));
		}
		CHECK(got == sent && count > 2);
		/* There is nothing to read, though much is out; and something to read again. */
		struct pollfd polled = { .fd = ends[1], .events = POLLIN };
		CHECK(poll(&polled, 1, 0) == 0);
		/* Every other one first, from the end: room comes back with the first. */
		for (int at = count - 1; at >= 0; at--)
			if (at % 2) {
				is_from(&kept[at], lent_at[at], lens[at]);
				CHECK(!api->free_packets(ends[1], kept[at].said.pkts, 1));
			}
		for (; first < count; first += 2) {
			is_from(&kept[first], lent_at[first], lens[first]);
			CHECK(!api->free_packets(ends[1], kept[first].said.pkts, 1));
		}
		freed = got;
		/* Copies in between count as well. */
		ssize_t done = send(ends[0], bytes, fill(bytes, sent, 5000), 0);
		CHECK(done == 5000);
		sent += done;
		int len = api->recvfrom_zcopy(ends[1], &kept[0], PIECE_ROOM - 1, &(int){ 0 }, NULL, NULL);
		CHECK(len < 0 && errno == ENOBUFS); /* too short for a packet: it stays */
		int flags = 0;
		len = api->recvfrom_zcopy(ends[1], &kept[0], PIECE_ROOM, &flags, NULL, NULL);
		CHECK(len > 0 && flags == MSG_VMA_ZCOPY && kept[0].said.pkts->sz_iov == 1);
		is_from(&kept[0], got, len);
		CHECK(!api->free_packets(ends[1], kept[0].said.pkts, 1));
		got += len;
		while (got < sent) {
			CHECK((len = recv(ends[1], bytes, 50, 0)) > 0); /* copied */
			CHECK(bytes[len - 1] == (unsigned char)((got + len - 1) * 7 >> 3));
			got += len;
		}
		CHECK(send(ends[0], bytes, fill(bytes, sent, 5000), 0) == 5000);
		sent += 5000;
		while (got < sent) {
			len = lend(ends[1], &kept[0], 0);
			CHECK(len > 0);
			is_from(&kept[0], got, len);
			got += len;
			CHECK(!api->free_packets(ends[1], kept[0].said.pkts, 1));
		}
		(void)freed;
	}
	/* What is lent outlives the descriptors. */
	CHECK(send(ends[0], bytes, fill(bytes, sent, 100), 0) == 100);
	CHECK(lend(ends[1], &kept[0], 0) == 100);
	close(ends[0]);
	int flags = 0;
	CHECK(api->recvfrom_zcopy(ends[1], &kept[1], sizeof kept[1], &flags, NULL, NULL) == 0);
	CHECK(!(flags & MSG_VMA_ZCOPY));
	close(ends[1]);
	is_from(&kept[0], sent, 100);
}

static volatile int is_over;

/* Each end has a processor of its own, where there are two. */
static void pin(int processor) {
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(processor, &set);
	sched_setaffinity(0, sizeof set, &set);
}

static void *pour(void *at) {
	static char bytes[1 << 16];
	pin(1);
	while (!is_over) send(*(int *)at, bytes, sizeof bytes, MSG_NOSIGNAL);
	shutdown(*(int *)at, SHUT_WR);
	return NULL;
}

/* Reads all there is, as a program does that has received it. */
static void look(const char *bytes, size_t len) {
	uint64_t sum = 0, word;
	for (size_t at = 0; at + sizeof word <= len; at += sizeof word) {
		memcpy(&word, bytes + at, sizeof word);
		sum += word;
	}
	__asm__ volatile("" : : "r"(sum));
}

/* Bytes a second of one way to receive, of a program that reads what comes, or does not. */
static double rate(int is_lent, int looks, double seconds) {
	static char into[1 << 16];
	int ends[2];
	pthread_t thread;
	stream(AF_INET, ends);
	warm_up(ends);
	is_over = 0;
	pin(0);
	pthread_create(&thread, NULL, pour, &ends[0]);
	uint64_t start = now_ns(CLOCK_MONOTONIC), total = 0, until = start + seconds * 1e9, now;
	do {
		union packets packets;
		int len = is_lent ? lend(ends[1], &packets, 0) : recv(ends[1], into, sizeof into, 0);
		CHECK(len > 0);
		if (looks && !is_lent) look(into, len);
		if (is_lent) {
			const struct vma_packet_t *packet = packets.said.pkts;
			for (size_t piece = 0; looks && piece < packet->sz_iov; piece++) {
				struct iovec part;
				memcpy(&part, &packet->iov[piece], sizeof part);
				look(part.iov_base, part.iov_len);
			}
			CHECK(!api->free_packets(ends[1], packets.said.pkts, 1));
		}
		total += len;
	} while ((now = now_ns(CLOCK_MONOTONIC)) < until);
	is_over = 1;
	while (recv(ends[1], into, sizeof into, 0) > 0) {}
	pthread_join(thread, NULL);
	close(ends[0]);
	close(ends[1]);
	return total / ((now - start) / 1e9);
}

static int compare(const void *a, const void *b) {
	double left = *(const double *)a, right = *(const double *)b;
	return (left > right) - (left < right);
}

/* Rounds of both ways in turn, and the median of their ratios. The sender pours, on a processor of its own: what is lent and
   not read costs the receiver next to nothing, so that the sender's copy is what takes the time. */
static void bench(int looks, double seconds, int rounds) {
	double *ratios = calloc(rounds, sizeof *ratios);
	const char *what = looks ? ", all of which is read" : "";
	for (int round = 0; round < rounds; round++) {
		double copied = rate(0, looks, seconds), lent = rate(1, looks, seconds);
		ratios[round] = lent / copied;
		printf("recv %.2f GB/s, recvfrom_zcopy %.2f GB/s%s: %.2f\n", copied / 1e9, lent / 1e9, what, ratios[round]);
	}
	qsort(ratios, rounds, sizeof *ratios, compare);
	printf("recvfrom_zcopy has %.2f of the bytes (%.2f to %.2f)%s\n", ratios[rounds / 2], ratios[0], ratios[rounds - 1], what);
	free(ratios);
}

/* Passes a stream of some MiB, each message of which is copied, or lent, or kept until the ring is half full. */
static void pass(const char *how) {
	enum { SIZE = 1 << 16, KEPT = 3 };
	static char bytes[SIZE];
	int ends[2], kept = 0;
	union packets packets[KEPT];
	stream(AF_INET, ends);
	warm_up(ends);
	for (int message = 0; message < 512; message++) {
		for (int sent = 0; sent < SIZE;) {
			ssize_t now = send(ends[0], bytes, SIZE - sent, MSG_DONTWAIT);
			CHECK(now > 0 || errno == EAGAIN);
			sent += now > 0 ? now : 0;
			while (how[0] == 'r' && now > 0) {
				ssize_t got = recv(ends[1], bytes, now, 0);
				CHECK(got > 0);
				now -= got;
			}
			while (how[0] != 'r' && now > 0) {
				if (kept == (how[0] == 'k' ? KEPT : 1))
					while (kept) CHECK(!api->free_packets(ends[1], packets[--kept].said.pkts, 1));
				int got = lend(ends[1], &packets[kept++], 0);
				CHECK(got > 0);
				now -= got;
			}
		}
	}
	while (kept) CHECK(!api->free_packets(ends[1], packets[--kept].said.pkts, 1));
	close(ends[0]), close(ends[1]);
}

int main(int count, char **arguments) {
	CHECK((api = vma_get_api()));
	if (count > 3) {
		for (int looks = 0; looks < 2; looks++) bench(looks, atof(arguments[2]), atoi(arguments[3]));
		return 0;
	}
	if (count > 2) {
		pass(arguments[2]);
		return 0;
	}
	for (int six = 0; six < 2; six++) {
		try_mail(six ? AF_INET6 : AF_INET);
		try_stream(six ? AF_INET6 : AF_INET);
	}
	return 0;
}
