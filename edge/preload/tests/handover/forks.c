/*
 * Forks while other threads make, watch and close connections: each child can close what it has inherited.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
	_exit(1);
}

static struct sockaddr_in address;
static volatile int is_over;

static int listens(void) {
	socklen_t len = sizeof address;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&address, sizeof address) && !listen(fd, 64));
	CHECK(!getsockname(fd, (struct sockaddr *)&address, &len));
	return fd;
}

static int watched(int *watch) {
	struct epoll_event event = { EPOLLIN, { .u64 = 1 } };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof address));
	CHECK((*watch = epoll_create1(0)) >= 0);
	CHECK(!epoll_ctl(*watch, EPOLL_CTL_ADD, fd, &event));
	return fd;
}

static void *makes(void *unused) {
	while (!is_over) {
		int watch, fd = watched(&watch);
		CHECK(!close(fd) && !close(watch));
	}
	return NULL;
}

static void *accepts(void *listener) {
	for (;;) {
		int fd = accept(*(int *)listener, NULL, NULL);
		if (fd < 0) return NULL;
		close(fd);
	}
}

int main(void) {
	int listener = listens();
	pthread_t maker[2], accepter;
	CHECK(!pthread_create(&accepter, NULL, accepts, &listener));
	for (int i = 0; i < 2; i++) CHECK(!pthread_create(&maker[i], NULL, makes, NULL));
	for (int i = 0; i < 400; i++) {
		int status, watch, fd = watched(&watch);
		pid_t child = fork();
		if (!child) {
			alarm(30); /* as good as for ever */
			close(fd);
			close(watch);
			int another = epoll_create1(0);
			_exit(another < 0);
		}
		CHECK(!close(fd) && !close(watch));
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(status == 0);
	}
	is_over = 1;
	for (int i = 0; i < 2; i++) CHECK(!pthread_join(maker[i], NULL));
	_exit(0);
}
