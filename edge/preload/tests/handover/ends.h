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
