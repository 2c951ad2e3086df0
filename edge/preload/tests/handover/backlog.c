/* Datagrams that were sent before their receiver had a mailbox, and are received after.
 *
 * A burst, of which one is received, so that there is a mailbox; one more, with which the sender finds it; the rest;
 * and then one after the other. Exit status 0: all came, in order. Through what, the library counts.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BURST = 100, AFTER = 1000 };

static int receiver, sender;
static int sent, received;

static int give(void) {
	int number = sent++;
	return send(sender, &number, sizeof number, 0) == sizeof number;
}

static int take(int flags) {
	int number = -1;
	if (recv(receiver, &number, sizeof number, flags) < 0) return 0;
	if (number != received++) {
		dprintf(2, "%d came instead of %d\n", number, received - 1);
		_exit(2);
	}
	return 1;
}

int main(void) {
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof address;
	receiver = socket(AF_INET, SOCK_DGRAM, 0);
	sender = socket(AF_INET, SOCK_DGRAM, 0);
	if (bind(receiver, (struct sockaddr *)&address, len) || getsockname(receiver, (struct sockaddr *)&address, &len)) return 3;
	if (connect(sender, (struct sockaddr *)&address, len)) return 4;
	for (int i = 0; i < BURST; i++)
		if (!give()) return 5;
	if (!take(0) || !give()) return 6;
	while (received < sent)
		if (!take(0)) return 7;
	for (int i = 0; i < AFTER; i++)
		if (!give() || !take(0)) return 8;
	close(receiver);
	close(sender);
	return 0;
}
