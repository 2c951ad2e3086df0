/* A server that will read nothing says so before it sends for the first time, and its client reads late: every byte arrives. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "line %d: %s: %m\n", __LINE__, #what); _exit(1); } } while (0)
#include "ends.h"

enum { SENDS = 100, BYTES = 3 };

static void read_late(int listener) {
	char bytes[SENDS * BYTES + 1];
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	joins(fd, listener);
	usleep(200000);
	CHECK(recv(fd, bytes, sizeof bytes, MSG_WAITALL) == SENDS * BYTES);
	_exit(0);
}

int main(void) {
	int listener = bound(SOCK_STREAM), status;
	CHECK(!listen(listener, 4));
	alarm(100);
	for (int turn = 0; turn < 3; turn++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) read_late(listener);
		int fd = accept(listener, NULL, NULL);
		CHECK(fd >= 0 && !shutdown(fd, SHUT_RD));
		for (int i = 0; i < SENDS; i++) {
			usleep(1000);
			CHECK(send(fd, "out", BYTES, MSG_NOSIGNAL) == BYTES);
		}
		CHECK(!close(fd));
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	return 0;
}
