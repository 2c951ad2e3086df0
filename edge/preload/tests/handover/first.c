// The first call of a process that the library stands in front of leaves errno as it was.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <netinet/in.h>

int main(int count, char **arguments) {
	int kind = count > 1 ? atoi(arguments[1]) : SOCK_STREAM;
	errno = 0;
	int fd = socket(AF_INET, kind, kind == SOCK_RAW ? IPPROTO_TCP : 0);
	if (fd >= 0 && errno != 0) {
		perror("a call that succeeded");
		return 1;
	}
	return 0;
}
