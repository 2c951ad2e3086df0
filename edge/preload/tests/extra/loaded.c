/* A program that loads the library by itself, and has macros of the names of calls, which go by pointers that the library
   gave: it compiles with the header, and gets all of it. Its handlers of signals are set behind the library's back.
   loaded LIBRARY */
#include <dlfcn.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <errno.h>

#define POINTERS(f) f(socket) f(bind) f(connect) f(close) f(getsockname) f(getsockopt) f(recvfrom) f(readv) f(writev)
static int (*fn_socket)(int, int, int), (*fn_close)(int);
static int (*fn_bind)(int, const struct sockaddr *, socklen_t), (*fn_connect)(int, const struct sockaddr *, socklen_t);
static int (*fn_getsockname)(int, struct sockaddr *, socklen_t *), (*fn_getsockopt)(int, int, int, void *, socklen_t *);
static ssize_t (*fn_recvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *);
static ssize_t (*fn_readv)(int, const struct iovec *, int), (*fn_writev)(int, const struct iovec *, int);
#define socket(...) fn_socket(__VA_ARGS__)
#define close(...) fn_close(__VA_ARGS__)
#define bind(...) fn_bind(__VA_ARGS__)
#define connect(...) fn_connect(__VA_ARGS__)
#define getsockname(...) fn_getsockname(__VA_ARGS__)
#define getsockopt(...) fn_getsockopt(__VA_ARGS__)
#define recvfrom(...) fn_recvfrom(__VA_ARGS__)
#define readv(...) fn_readv(__VA_ARGS__)
#define writev(...) fn_writev(__VA_ARGS__)
#include <mellanox/vma_extra.h>

#define CHECK(what)                                                                            \
	do {                                                                                       \
		if (!(what)) {                                                                         \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno);       \
			exit(1);                                                                           \
		}                                                                                      \
	} while (0)

static int ends[2];
static volatile int is_over;

static vma_recv_callback_retval_t echoes(int fd, size_t count, struct iovec *parts, struct vma_info_t *info, void *context) {
	CHECK(fd == ends[1] && context == ends && info->struct_sz == sizeof *info && info->payload_sz == sizeof(int));
	CHECK(writev(fd, parts, count) == sizeof(int));
	return VMA_PACKET_DROP;
}

static void interrupted(int signal) { (void)signal; }

/* Waits for what the callback does not leave to it. */
static void *waits(void *unused) {
	char byte;
	CHECK(recvfrom(ends[1], &byte, 1, 0, NULL, NULL) < 0 && errno == EINTR);
	is_over = 1;
	return unused;
}

int main(int count, char **arguments) {
	CHECK(count == 2);
	void *library = dlopen(arguments[1], RTLD_LAZY);
	CHECK(library);
#define POINTER(name) CHECK((*(void **)&fn_##name = dlsym(library, #name)) && (void *)fn_##name != dlsym(RTLD_DEFAULT, #name));
	POINTERS(POINTER)
	struct vma_api_t *api = vma_get_api();
	CHECK(api);
	struct sockaddr_in at[2];
	for (int end = 0; end < 2; end++) {
		at[end] = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		socklen_t len = sizeof at[end];
		CHECK((ends[end] = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
		CHECK(!bind(ends[end], (struct sockaddr *)&at[end], len) && !getsockname(ends[end], (struct sockaddr *)&at[end], &len));
	}
	for (int end = 0; end < 2; end++) CHECK(!connect(ends[end], (struct sockaddr *)&at[!end], sizeof at[!end]));
	CHECK(!api->register_recv_callback(ends[1], echoes, ends));
	CHECK(!sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = interrupted }, NULL));
	pthread_t other;
	CHECK(!pthread_create(&other, NULL, waits, NULL));
	for (int round = 0; round < 2000; round++) {
		int got = -1;
		CHECK(writev(ends[0], &(struct iovec){ &round, sizeof round }, 1) == sizeof round);
		CHECK(readv(ends[0], &(struct iovec){ &got, sizeof got }, 1) == sizeof got && got == round);
	}
	for (int round = 0; round < 1000 && !is_over; round++) {
		CHECK(!pthread_kill(other, SIGUSR1));
		usleep(10000);
	}
	CHECK(is_over && !pthread_join(other, NULL));
	CHECK(!close(ends[0]) && !close(ends[1]));
	return 0;
}
