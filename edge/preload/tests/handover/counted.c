/* How much there is to read is what has been sent, also where the ring has begun again at its start; and a thread may ask
 * while another reads, which gets every byte once.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "line %d: %s\n", __LINE__, #what); _exit(1); } } while (0)
#include "ends.h"

enum { BYTES = 8200, PIECES = 20, ROUNDS = 5000 };

static int server;
static volatile int ends;

static void *asks(void *unused) {
	while (!ends) {
		int count = -1;
		CHECK(!ioctl(server, FIONREAD, &count) && count >= 0 && count <= BYTES);
	}
	return unused;
}

int main(void) {
	int listening = bound(SOCK_STREAM), client;
	CHECK(!listen(listening, 1));
	pair(listening, &client, &server);
	exchange(client, server, 100);
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, asks, NULL));
	static unsigned char sent[BYTES], got[4 * BYTES];
	for (int i = 0; i < ROUNDS; i++) {
		for (int at = 0; at < PIECES; at++) sent[at] = (unsigned char)(i + at);
		memset(sent + PIECES, i % 251, BYTES - PIECES);
		CHECK(send(client, sent, sizeof sent, 0) == BYTES);
		CHECK(recv(server, got, sizeof got, MSG_PEEK | MSG_TRUNC) == BYTES);
		for (int at = 0; at < PIECES; at++) CHECK(recv(server, got + at, 1, 0) == 1);
		CHECK(recv(server, got + PIECES, BYTES - PIECES, MSG_WAITALL) == BYTES - PIECES);
		CHECK(!memcmp(sent, got, BYTES));
	}
	ends = 1;
	CHECK(!pthread_join(thread, NULL));
	return 0;
}
