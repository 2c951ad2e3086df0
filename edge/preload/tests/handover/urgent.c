/* A thread that sends an urgent byte, and waits for another one that is stuck in the midst of a send, keeps none from receiving,
 * and waits no longer than a send may take. The other one is stuck in reading what it sends: nothing provides that page.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "line %d: %s\n", __LINE__, #what); _exit(1); } } while (0)
#include "ends.h"

static char *page;
static int client, server;
static volatile int is_over;

static void *sends(void *none) {
	CHECK(send(client, page, 100, 0) == 100);
	return none;
}

static void *urges(void *none) {
	CHECK(send(client, "!", 1, MSG_OOB) < 0 && errno == EAGAIN);
	is_over = 1;
	return none;
}

int main(void) {
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY), received = 0;
	struct uffdio_api api = { .api = UFFD_API };
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { { (unsigned long)page, 4096 }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	CHECK(faults >= 0 && !ioctl(faults, UFFDIO_API, &api) && !ioctl(faults, UFFDIO_REGISTER, &range));
	int listening = bound(SOCK_STREAM);
	CHECK(!listen(listening, 1));
	pair(listening, &client, &server);
	exchange(client, server, 100);
	struct timeval limit = { .tv_sec = 2 };
	CHECK(!setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
	pthread_t sender, urgent;
	struct uffd_msg fault;
	CHECK(!pthread_create(&sender, NULL, sends, NULL));
	CHECK(read(faults, &fault, sizeof fault) == sizeof fault && fault.event == UFFD_EVENT_PAGEFAULT);
	CHECK(!pthread_create(&urgent, NULL, urges, NULL));
	char bytes[100];
	while (!is_over) {
		CHECK(send(server, "x", 1, 0) == 1 && recv(client, bytes, 1, 0) == 1);
		received++;
		usleep(1000);
	}
	CHECK(!pthread_join(urgent, NULL));
	if (received < 50) {
		dprintf(2, "only %d bytes came meanwhile\n", received);
		return 1;
	}
	struct uffdio_zeropage zeros = { .range = range.range };
	CHECK(!ioctl(faults, UFFDIO_ZEROPAGE, &zeros));
	CHECK(recv(server, bytes, 100, MSG_WAITALL) == 100 && !pthread_join(sender, NULL));
	return 0;
}
