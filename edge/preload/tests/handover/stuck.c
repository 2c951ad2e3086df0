/* A program that is started gets its descriptors before long, though a thread of its parent is stuck in the midst of a send
 * for ever: it holds what another end has to hold that gives the connection back to the kernel. It is stuck in reading what
 * it sends: nothing provides that page.
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

static char *page;

static void *sends(void *fd) {
	send(*(int *)fd, page, 100, 0);
	return NULL;
}

int main(void) {
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY), client, server, status;
	struct uffdio_api api = { .api = UFFD_API };
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { { (unsigned long)page, 4096 }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	CHECK(faults >= 0 && !ioctl(faults, UFFDIO_API, &api) && !ioctl(faults, UFFDIO_REGISTER, &range));
	int listening = bound(SOCK_STREAM);
	CHECK(!listen(listening, 1));
	pair(listening, &client, &server);
	exchange(client, server, 100);
	pthread_t thread;
	struct uffd_msg fault;
	CHECK(!pthread_create(&thread, NULL, sends, &client));
	CHECK(read(faults, &fault, sizeof fault) == sizeof fault && fault.event == UFFD_EVENT_PAGEFAULT);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		char *none[] = { NULL };
		execle("/bin/true", "true", NULL, none);
		_exit(1);
	}
	/* It is given up after two seconds. */
	for (int i = 0; !waitpid(pid, &status, WNOHANG); i++) {
		CHECK(i < 2000);
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	CHECK(status == 0);
	struct uffdio_zeropage zeros = { .range = range.range };
	CHECK(!ioctl(faults, UFFDIO_ZEROPAGE, &zeros) && !pthread_join(thread, NULL));
	return 0;
}
