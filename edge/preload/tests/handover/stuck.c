/* A program that is started gets its descriptors before long, though threads of its parent are stuck in the midst of sends
 * for ever: they hold what other ends have to hold that give the connections back to the kernel. They are stuck in reading what
 * they send: nothing provides that page. Many of them keep it no longer than one.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "line %d: %s\n", __LINE__, #what); _exit(1); } } while (0)
#include "ends.h"

enum { ALL = 8 };

static char *pages;

static double now(void) {
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void *sends(void *fd) {
	static int next;
	send(*(int *)fd, pages + 4096 * __sync_fetch_and_add(&next, 1), 100, 0);
	return NULL;
}

/* How long it takes to start a program. */
static double starts(void) {
	int status;
	double begun = now();
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		char *none[] = { NULL };
		execle("/bin/true", "true", NULL, none);
		_exit(1);
	}
	/* It is given up after seconds. */
	for (int i = 0; !waitpid(pid, &status, WNOHANG); i++) {
		CHECK(i < 4000);
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	CHECK(status == 0);
	return now() - begun;
}

int main(void) {
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY), clients[ALL], server;
	struct uffdio_api api = { .api = UFFD_API };
	pages = mmap(NULL, 4096 * ALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { { (unsigned long)pages, 4096 * ALL }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	CHECK(faults >= 0 && !ioctl(faults, UFFDIO_API, &api) && !ioctl(faults, UFFDIO_REGISTER, &range));
	int listening = bound(SOCK_STREAM);
	CHECK(!listen(listening, ALL));
	pthread_t threads[ALL];
	double first = 0;
	for (int i = 0; i < ALL; i++) {
		pair(listening, &clients[i], &server);
		exchange(clients[i], server, 100);
		CHECK(!fcntl(server, F_SETFD, FD_CLOEXEC) && !fcntl(clients[i], F_SETFD, i ? FD_CLOEXEC : 0));
	}
	for (int i = 0; i < ALL; i++) {
		struct uffd_msg fault;
		CHECK(!pthread_create(&threads[i], NULL, sends, &clients[i]));
		CHECK(read(faults, &fault, sizeof fault) == sizeof fault && fault.event == UFFD_EVENT_PAGEFAULT);
		if (!i)
			first = starts();
		CHECK(!fcntl(clients[i], F_SETFD, 0));
	}
	double all = starts();
	if (all > ALL / 2 * first) {
		dprintf(2, "one: %g s, all: %g s\n", first, all);
		return 1;
	}
	struct uffdio_zeropage zeros = { .range = range.range };
	CHECK(!ioctl(faults, UFFDIO_ZEROPAGE, &zeros));
	for (int i = 0; i < ALL; i++)
		CHECK(!pthread_join(threads[i], NULL));
	return 0;
}
