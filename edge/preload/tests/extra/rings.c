/* Rings: when a socket has one, and which sockets share it. Expects LOGIC to say by what sockets share rings. */
#include "ends.h"
#include <mellanox/vma_extra.h>

static struct vma_api_t *api;

/* The ring of a socket, or -1; its count agrees, and errno stays as it was. */
static int ring(int fd) {
	int found[2] = { -1, -1 };
	errno = 0;
	int count = api->get_socket_rings_fds(fd, found, 2);
	CHECK(count == 0 || count == 1);
	CHECK(errno == 0 && api->get_socket_rings_num(fd) == count && found[1] == -1);
	CHECK((found[0] >= 0) == (count == 1));
	return found[0];
}

static int is_by(const char *logic) { return !strcmp(getenv("LOGIC"), logic); }

/* Takes the first of its processors, or the last; says whether there is another. */
static int pin(int last) {
	static cpu_set_t all;
	cpu_set_t one;
	int first = -1, at = -1;
	if (!CPU_COUNT(&all)) CHECK(!sched_getaffinity(0, sizeof all, &all));
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (CPU_ISSET(cpu, &all)) at = cpu, first = first < 0 ? cpu : first;
	}
	CPU_ZERO(&one);
	CPU_SET(last ? at : first, &one);
	CHECK(!sched_setaffinity(0, sizeof one, &one));
	return at != first;
}

static void *ring_of_thread(void *fd) {
	if (is_by("30")) pin(1);
	*(int *)fd = ring(*(int *)fd);
	return NULL;
}

static void try_kind(int domain, int kind) {
	struct sockaddr_storage at;
	int fresh = socket(domain, kind, 0), bound_fd, connected, none, has_others = is_by("30") && pin(0);
	CHECK(ring(fresh) == -1);
	CHECK(api->get_socket_tx_ring_fd(fresh, NULL, 0) < 0 && errno == ENODATA);
	CHECK(api->get_socket_rings_fds(fresh, &none, 0) < 0 && errno == EINVAL);
	CHECK(api->get_socket_rings_fds(fresh, NULL, 1) < 0 && errno == EINVAL);
	/* An address is what it takes: by bind, by connect, also one that is under way. */
	bound_fd = bound(domain, kind, &at);
	int first = ring(bound_fd);
	CHECK(first >= 0 && ring(bound_fd) == first);
	CHECK(api->get_socket_tx_ring_fd(bound_fd, NULL, 0) == first);
	if (kind == SOCK_STREAM) CHECK(!listen(bound_fd, 4));
	connected = socket(domain, kind | SOCK_NONBLOCK, 0);
	if (connect(connected, (struct sockaddr *)&at, length(&at))) CHECK(errno == EINPROGRESS);
	int second = ring(connected);
	CHECK(second >= 0 && ring(bound_fd) == first);
	CHECK((first == second) == !is_by("10"));
	/* What was said of one socket goes before what is said of all. */
	struct vma_ring_alloc_logic_attr logic = { .comp_mask = VMA_RING_ALLOC_MASK_RING_INGRESS |
		VMA_RING_ALLOC_MASK_RING_USER_ID, .ring_alloc_logic = RING_LOGIC_PER_USER_ID, .user_id = 77, .ingress = 1 };
	int mine[2];
	for (int which = 0; which < 2; which++) {
		mine[which] = socket(domain, kind, 0);
		CHECK(!setsockopt(mine[which], SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof logic));
		socklen_t len = loopback(domain, &at);
		CHECK(!bind(mine[which], (struct sockaddr *)&at, len));
	}
	CHECK(ring(mine[0]) != first && ring(mine[0]) == ring(mine[1]));
	for (int which = 0; which < 2; which++) close(mine[which]);
	/* Another address's sockets share its ring, if addresses have rings. */
	if (domain == AF_INET) {
		struct sockaddr_in there = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1) };
		int two[2];
		for (int which = 0; which < 2; which++) {
			two[which] = socket(domain, kind, 0);
			there.sin_port = 0;
			CHECK(!bind(two[which], (struct sockaddr *)&there, sizeof there));
		}
		CHECK((ring(two[0]) == ring(two[1])) == !is_by("10"));
		CHECK((ring(two[0]) == first) == !(is_by("1") || is_by("10")));
		close(two[0]), close(two[1]);
	}
	/* Another thread's, if threads have rings; another processor's, if processors have. */
	int other = bound(domain, kind, &at), found = other;
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, ring_of_thread, &found) && !pthread_join(thread, NULL));
	CHECK(found >= 0 && (found == first) == (is_by("0") || is_by("1") || (is_by("30") && !has_others)));
	CHECK(ring(other) == found);
	close(fresh), close(bound_fd), close(connected), close(other);
}

/* A ring that is closed is gone: another file may have its number, in children, too, and its sockets get another ring. */
static void closed(void) {
	struct sockaddr_storage at;
	int fd = bound(AF_INET, SOCK_DGRAM, &at), first = ring(fd), pipes[2], status;
	char byte;
	CHECK(first >= 0 && !pipe(pipes) && !close(first) && dup2(pipes[0], first) == first);
	int second = ring(fd);
	CHECK(second >= 0 && second != first && ring(fd) == second);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) _exit(write(pipes[1], "x", 1) != 1 || read(first, &byte, 1) != 1);
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	close(fd), close(pipes[0]), close(pipes[1]), close(first);
}

/* The number of a ring that is closed becomes that of another ring, for other sockets: the first one's get one anew. */
static void reused(void) {
	struct sockaddr_storage at;
	struct vma_ring_alloc_logic_attr logic = { .comp_mask = VMA_RING_ALLOC_MASK_RING_INGRESS |
		VMA_RING_ALLOC_MASK_RING_USER_ID, .ring_alloc_logic = RING_LOGIC_PER_USER_ID, .ingress = 1 };
	int fds[2], rings[2];
	for (int which = 0; which < 2; which++) {
		fds[which] = socket(AF_INET, SOCK_DGRAM, 0);
		logic.user_id = 900 + which;
		CHECK(!setsockopt(fds[which], SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof logic));
	}
	socklen_t len = loopback(AF_INET, &at);
	CHECK(!bind(fds[0], (struct sockaddr *)&at, len) && (rings[0] = ring(fds[0])) >= 0 && !close(rings[0]));
	len = loopback(AF_INET, &at);
	CHECK(!bind(fds[1], (struct sockaddr *)&at, len) && (rings[1] = ring(fds[1])) == rings[0]);
	CHECK(ring(fds[0]) >= 0 && ring(fds[0]) != rings[1]);
	close(fds[0]), close(fds[1]);
}

static void *closes_its_own(void *fd) {
	CHECK(!close_range(*(int *)fd, *(int *)fd, CLOSE_RANGE_UNSHARE));
	return NULL;
}

/* A thread that closes descriptors for itself alone leaves others their rings. */
static void unshared(void) {
	struct sockaddr_storage at;
	int fd = bound(AF_INET, SOCK_DGRAM, &at), first = ring(fd), copy = first;
	pthread_t thread;
	CHECK(first >= 0 && !pthread_create(&thread, NULL, closes_its_own, &copy) && !pthread_join(thread, NULL));
	CHECK(fcntl(first, F_GETFD) >= 0 && ring(fd) == first);
	close(fd);
}

int main(void) {
	CHECK((api = vma_get_api()));
	uint64_t mask = VMA_EXTRA_API_GET_SOCKET_RINGS_NUM | VMA_EXTRA_API_GET_SOCKET_RINGS_FDS |
		VMA_EXTRA_API_GET_SOCKET_TX_RING_FD;
	CHECK((api->vma_extra_supported_mask & mask) == mask);
	int none = -7;
	CHECK(api->get_socket_rings_fds(0, &none, 1) == 0 && none == -7);
	CHECK(api->get_socket_rings_num(999) == 0);
	CHECK(api->get_socket_tx_ring_fd(999, NULL, 0) < 0 && errno == EINVAL);
	for (int six = 0; six < 2; six++) {
		try_kind(six ? AF_INET6 : AF_INET, SOCK_DGRAM);
		try_kind(six ? AF_INET6 : AF_INET, SOCK_STREAM);
	}
	closed();
	reused();
	unshared();
	return 0;
}
