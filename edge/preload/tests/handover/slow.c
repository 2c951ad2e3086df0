/* A connection whose other end goes back to the kernel follows it, though a thread of this process takes long in the midst of
 * a send: it reads what it sends from a page that comes late. Another thread waits for what comes meanwhile.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "line %d: %s\n", __LINE__, #what); _exit(1); } } while (0)
#include "ends.h"

static char *page;

static void *sends(void *fd) {
	CHECK(send(*(int *)fd, page, 100, 0) == 100);
	return NULL;
}

static void *receives(void *fd) {
	char bytes[100];
	CHECK(recv(*(int *)fd, bytes, 100, MSG_WAITALL) == 100);
	for (int i = 0; i < 100; i++)
		CHECK(bytes[i] == 'y');
	return NULL;
}

int main(void) {
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY), client, server, status, start[2];
	struct uffdio_api api = { .api = UFFD_API };
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { { (unsigned long)page, 4096 }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	CHECK(faults >= 0 && !ioctl(faults, UFFDIO_API, &api) && !ioctl(faults, UFFDIO_REGISTER, &range));
	int listening = bound(SOCK_STREAM);
	CHECK(!listen(listening, 1));
	pair(listening, &client, &server);
	exchange(client, server, 100);
	CHECK(!pipe2(start, O_CLOEXEC));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		char byte, *none[] = { NULL };
		CHECK(!close(client) && read(start[0], &byte, 1) == 1);
		CHECK(dup2(server, 0) == 0 && dup2(server, 1) == 1 && !close(server));
		execle("/bin/cat", "cat", NULL, none);
		_exit(1);
	}
	CHECK(!close(server));
	pthread_t sender, receiver;
	struct uffd_msg fault;
	CHECK(!pthread_create(&sender, NULL, sends, &client));
	CHECK(read(faults, &fault, sizeof fault) == sizeof fault && fault.event == UFFD_EVENT_PAGEFAULT);
	CHECK(!pthread_create(&receiver, NULL, receives, &client) && write(start[1], "x", 1) == 1);
	/* Longer than a thread of another process is waited for. A call that is not to wait comes back meanwhile, again and again. */
	int calls = 0;
	for (time_t begun = time(NULL); time(NULL) - begun < 8; calls++) {
		char byte;
		CHECK(recv(client, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0);
	}
	CHECK(calls > 50);
	char ready[4096];
	memset(ready, 'y', sizeof ready);
	struct uffdio_copy copy = { .dst = (unsigned long)page, .src = (unsigned long)ready, .len = 4096 };
	CHECK(!ioctl(faults, UFFDIO_COPY, &copy));
	CHECK(!pthread_join(sender, NULL) && !pthread_join(receiver, NULL));
	CHECK(!shutdown(client, SHUT_WR) && waitpid(pid, &status, 0) == pid && status == 0);
	return 0;
}
