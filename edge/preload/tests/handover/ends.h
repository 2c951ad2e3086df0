/* Ends of connections and of datagrams on the loopback address, for programs that have defined CHECK. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static struct sockaddr_in name_of(int fd) {
	struct sockaddr_in address;
	socklen_t len = sizeof address;
	CHECK(!getsockname(fd, (struct sockaddr *)&address, &len));
	return address;
}

static int bound(int kind) {
	struct sockaddr_in address = { .sin_family = AF_INET };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int fd = socket(AF_INET, kind, 0);
	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&address, sizeof address));
	return fd;
}

static void joins(int fd, int to) {
	struct sockaddr_in address = name_of(to);
	CHECK(!connect(fd, (struct sockaddr *)&address, sizeof address));
}

static void exchange(int a, int b, int times) {
	char byte = 'x';
	for (int i = 0; i < times; i++) {
		CHECK(send(a, &byte, 1, 0) == 1 && recv(b, &byte, 1, 0) == 1);
		CHECK(send(b, &byte, 1, 0) == 1 && recv(a, &byte, 1, 0) == 1);
	}
}

static void pair(int listening, int *client, int *server) {
	CHECK((*client = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	joins(*client, listening);
	CHECK((*server = accept(listening, NULL, NULL)) >= 0);
}

static void mails(int *a, int *b) {
	*a = bound(SOCK_DGRAM);
	*b = bound(SOCK_DGRAM);
	joins(*a, *b);
	joins(*b, *a);
	exchange(*a, *b, 5);
}
