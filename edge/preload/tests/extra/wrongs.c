/* The extra functions as programs get them wrong: numbers that are no sockets, pointers to nothing, packets that are
   given back twice, by another, by a copy of the descriptor, by a child, and after the end. */
#include "ends.h"
#include <mellanox/vma_extra.h>

static struct vma_api_t *api;

/* Room for a packet of three pieces. */
union packets {
	struct vma_packets_t said;
	char bytes[128];
};

static int lend(int fd, union packets *packets, int flags) {
	return api->recvfrom_zcopy(fd, packets, sizeof *packets, (flags |= MSG_VMA_ZCOPY_FORCE, &flags), NULL, NULL);
}

static int give_back(int fd, union packets *packets) { return api->free_packets(fd, packets->said.pkts, 1); }

static vma_recv_callback_retval_t never(int fd, size_t count, struct iovec iov[], struct vma_info_t *info, void *context) {
	(void)fd, (void)count, (void)iov, (void)info;
	++*(int *)context;
	return VMA_PACKET_RECV;
}

/* What is no socket: a pipe, a number that is not open, one that never will be. */
static void no_sockets(void) {
	int pipes[2], count = 0, fds[4];
	CHECK(!pipe(pipes));
	int wrong[] = { -1, pipes[0], 999, 1 << 30 };
	char room[128];
	for (unsigned at = 0; at < sizeof wrong / sizeof *wrong; at++) {
		int fd = wrong[at], flags = MSG_VMA_ZCOPY_FORCE;
		CHECK(api->register_recv_callback(fd, never, &count) < 0 && errno == EINVAL);
		CHECK(api->recvfrom_zcopy(fd, room, sizeof room, &flags, NULL, NULL) < 0);
		flags = MSG_DONTWAIT;
		CHECK(api->recvfrom_zcopy(fd, room, sizeof room, &flags, NULL, NULL) < 0);
		CHECK(errno == EBADF || errno == ENOTSOCK);
		CHECK(api->free_packets(fd, (void *)room, 0) < 0 && errno == EINVAL);
		CHECK(api->get_socket_rings_num(fd) == 0);
		CHECK(api->get_socket_rings_fds(fd, fds, 4) == 0);
		CHECK(api->get_socket_tx_ring_fd(fd, NULL, 0) < 0 && errno == EINVAL);
		CHECK(api->get_socket_network_header(fd, NULL, NULL) < 0 && errno == EINVAL);
		CHECK(api->dump_fd_stats(fd, 5) < 0);
		CHECK(send(fd, room, 1, VMA_SND_FLAGS_DUMMY) < 0);
	}
	close(pipes[0]), close(pipes[1]);
}

/* Nothing where something has to be. */
static void nothing(int domain) {
	int ends[2], fds[1], flags = MSG_VMA_ZCOPY_FORCE;
	struct sockaddr_storage from;
	stream(domain, ends);
	warm_up(ends);
	CHECK(api->get_socket_rings_fds(ends[0], NULL, 1) < 0 && errno == EINVAL);
	CHECK(api->get_socket_rings_fds(ends[0], fds, 0) < 0 && errno == EINVAL);
	CHECK(api->get_socket_rings_fds(ends[0], fds, -1) < 0 && errno == EINVAL);
	CHECK(api->add_conf_rule(NULL) < 0 && errno == EINVAL);
	CHECK(api->add_conf_rule("use nonsense for_ever") < 0 && errno == EINVAL);
	CHECK(api->thread_offload(2, pthread_self()) < 0 && errno == EINVAL);
	CHECK(api->thread_offload(-1, pthread_self()) < 0 && errno == EINVAL);
	CHECK(api->vma_add_ring_profile(NULL, NULL) < 0 && errno == EINVAL);
	CHECK(api->dump_fd_stats(ends[0], 1 << 30) == 0);
	/* A call that cannot say where the bytes are leaves no packet out, and the next is what comes next. */
	CHECK(send(ends[0], "abc", 3, 0) == 3);
	CHECK(api->recvfrom_zcopy(ends[1], NULL, 128, &flags, NULL, NULL) < 0 && errno == EFAULT);
	union packets packets;
	CHECK(send(ends[0], "def", 3, 0) == 3);
	CHECK(api->recvfrom_zcopy(ends[1], &packets, sizeof packets, &flags, (struct sockaddr *)&from, NULL) < 0 && errno == EFAULT);
	CHECK(send(ends[0], "ghi", 3, 0) == 3);
	int got = lend(ends[1], &packets, 0);
	CHECK(got > 0);
	CHECK(!memcmp((char *)packets.said.pkts[0].iov[0].iov_base + got - 1, "i", 1));
	CHECK(!give_back(ends[1], &packets));
	close(ends[0]), close(ends[1]);
}

/* Packets that are given back twice, by another socket, by a copy, or not at all before the end. */
static void back_and_forth(int domain, void (*make)(int, int[2])) {
	int ends[2], others[2];
	union packets packets, second;
	make(domain, ends);
	make(domain, others);
	warm_up(ends);
	warm_up(others);
	CHECK(lend(ends[1], &packets, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	CHECK(send(ends[0], "abc", 3, 0) == 3);
	CHECK(lend(ends[1], &packets, 0) == 3);
	CHECK(give_back(others[1], &packets) < 0 && errno == ENOENT);
	CHECK(!give_back(ends[1], &packets));
	CHECK(give_back(ends[1], &packets) < 0 && errno == ENOENT);
	memset(&packets, 0xff, sizeof packets);
	CHECK(api->free_packets(ends[1], packets.said.pkts, ~(size_t)0) < 0 && errno == ENOENT);
	/* One of two that makes no sense: the first has been taken back. */
	CHECK(send(ends[0], "abc", 3, 0) == 3);
	CHECK(lend(ends[1], &packets, 0) == 3);
	CHECK(!api->free_packets(ends[1], packets.said.pkts, 0));
	CHECK(!api->free_packets(ends[1], NULL, 0));
	int copy = dup(ends[1]);
	CHECK(copy >= 0 && !close(ends[1]));
	CHECK(!memcmp(packets.said.pkts[0].iov[0].iov_base, "abc", 3));
	CHECK(send(ends[0], "defg", 4, 0) == 4);
	CHECK(lend(copy, &second, 0) == 4);
	CHECK(!give_back(copy, &packets));
	/* A child receives by itself, and what its parent has been lent is not its own. */
	int child = fork();
	if (!child) {
		CHECK(!memcmp(second.said.pkts[0].iov[0].iov_base, "defg", 4));
		CHECK(lend(copy, &packets, 0) == 2);
		CHECK(!memcmp(packets.said.pkts[0].iov[0].iov_base, "hi", 2));
		CHECK(!give_back(copy, &packets));
		CHECK(send(copy, "k", 1, 0) == 1);
		_exit(0);
	}
	int status;
	CHECK(send(ends[0], "hi", 2, 0) == 2);
	char byte;
	CHECK(recv(ends[0], &byte, 1, 0) == 1 && byte == 'k');
	CHECK(waitpid(child, &status, 0) == child && !status);
	CHECK(!memcmp(second.said.pkts[0].iov[0].iov_base, "defg", 4));
	/* After the end its bytes are still there, and its descriptor is not. */
	close(ends[0]);
	close(copy);
	CHECK(!memcmp(second.said.pkts[0].iov[0].iov_base, "defg", 4));
	CHECK(give_back(copy, &second) < 0 && errno == EINVAL);
	/* Another socket gets that number, and has never lent this. */
	make(domain, ends);
	int again = dup2(ends[1], copy);
	CHECK(again == copy);
	CHECK(give_back(again, &second) < 0 && errno == ENOENT);
	close(again), close(ends[0]), close(ends[1]), close(others[0]), close(others[1]);
}

/* A callback goes with its descriptor's socket: not to the next socket of that number. */
static void callbacks(int domain, void (*make)(int, int[2])) {
	int ends[2], count = 0;
	char byte;
	make(domain, ends);
	warm_up(ends);
	CHECK(!api->register_recv_callback(ends[1], NULL, NULL));
	CHECK(!api->register_recv_callback(ends[1], never, &count));
	CHECK(send(ends[0], "a", 1, 0) == 1 && recv(ends[1], &byte, 1, 0) == 1 && count == 1);
	int copy = dup(ends[1]), number = ends[1];
	close(ends[1]);
	CHECK(send(ends[0], "b", 1, 0) == 1 && recv(copy, &byte, 1, 0) == 1 && count == 2);
	close(copy), close(ends[0]);
	make(domain, ends);
	CHECK(dup2(ends[1], number) == number);
	warm_up(ends);
	CHECK(send(ends[0], "c", 1, 0) == 1 && recv(number, &byte, 1, 0) == 1 && count == 2);
	close(ends[0]), close(ends[1]), close(number);
}

/* SocketXtreme's functions with what is no ring, no buffer and no room. */
static void xtreme(void) {
	struct vma_completion_t completion;
	struct vma_buff_t buffer;
	int is_on = !!(api->vma_extra_supported_mask & VMA_EXTRA_API_SOCKETXTREME_POLL), error = is_on ? EINVAL : EOPNOTSUPP;
	memset(&buffer, 0, sizeof buffer);
	CHECK(api->socketxtreme_free_vma_packets(NULL, 1) < 0 && errno == error);
	CHECK(api->socketxtreme_ref_vma_buff(NULL) < 0 && errno == error);
	CHECK(api->socketxtreme_ref_vma_buff(&buffer) < 0 && errno == error);
	CHECK(api->socketxtreme_free_vma_buff(&buffer) < 0 && errno == error);
	int wrong[] = { -1, 0, 999, 1 << 30 };
	for (unsigned at = 0; at < sizeof wrong / sizeof *wrong; at++)
		CHECK(api->socketxtreme_poll(wrong[at], &completion, 1, 0) < 0 && (!is_on || errno == EBADFD));
	int ends[2], ring;
	stream(AF_INET6, ends);
	warm_up(ends);
	if (is_on && api->get_socket_rings_fds(ends[1], &ring, 1) == 1) {
		CHECK(api->socketxtreme_poll(ring, NULL, 1, 0) < 0);
		CHECK(api->socketxtreme_poll(ring, &completion, 0, 0) < 0);
		CHECK(api->socketxtreme_poll(ends[1], &completion, 1, 0) < 0);
	}
	close(ends[0]), close(ends[1]);
}

int main(void) {
	void *nowhere;
	socklen_t len = 4;
	CHECK(getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &nowhere, &len) < 0 && errno == EINVAL);
	CHECK(getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, NULL, &len) < 0 && errno == EINVAL);
	CHECK(getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &nowhere, NULL) < 0 && errno == EINVAL);
	CHECK(api = vma_get_api());
	int domains[] = { AF_INET, AF_INET6 };
	no_sockets();
	xtreme();
	for (int at = 0; at < 2; at++) {
		nothing(domains[at]);
		back_and_forth(domains[at], stream);
		back_and_forth(domains[at], mail);
		callbacks(domains[at], stream);
		callbacks(domains[at], mail);
	}
	return 0;
}
