/* One end of a measurement between two network namespaces: round trips, and streams one way.
 *
 *   probe serve tcp|udp ADDRESS PORT     echoes 64 bytes, never sleeps; until the other end is done
 *   probe turn tcp|udp ADDRESS PORT S    64 bytes there and back for S seconds: median one way, in us
 *   probe sink ADDRESS PORT              receives one stream: bytes/s, from the first half second on
 *   probe pour ADDRESS PORT BYTES S      sends it in writes of so many bytes
 *
 * Nothing here knows of the library: it is run with it and without. `benches/frames/run` calls it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { TURN_BYTES = 64, TURNS_MAX = 4000000, READ_BYTES = 1 << 17, FIRST = 500 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int open_one(int type) {
    int fd = socket(AF_INET, type, 0);
    if (fd < 0) fail("socket");
    if (type == SOCK_STREAM) setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
    return fd;
}

static struct sockaddr_in at(char **words) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[1]))};
    if (inet_pton(AF_INET, words[0], &at.sin_addr) != 1) fail("an address");
    return at;
}

/* A socket that serves; of a stream, its first connection. */
static int served(int type, struct sockaddr_in own) {
    int on = 1, fd = open_one(type);
    if (type == SOCK_STREAM) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&own, sizeof own) < 0) fail("bind");
    if (type == SOCK_DGRAM) return fd;
    if (listen(fd, 1) < 0) fail("listen");
    int one = accept(fd, NULL, NULL);
    if (one < 0) fail("accept");
    close(fd);
    setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return one;
}

/* A socket whose peer is there, or comes within some seconds. */
static int connected(int type, struct sockaddr_in peer) {
    for (double end = seconds() + 5; seconds() < end; usleep(20000)) {
        int on = 1, fd = open_one(type);
        if (connect(fd, (struct sockaddr *)&peer, sizeof peer) == 0) {
            if (type == SOCK_STREAM) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            return fd;
        }
        close(fd);
    }
    fail("connect");
    return -1;
}

/* One whole message, and the address that sent it; -1 at the end, or where none comes for a while. */
static int take(int fd, char *into, struct sockaddr_in *from) {
    int idle = 0;
    for (int done = 0; done < TURN_BYTES;) {
        socklen_t len = sizeof *from;
        ssize_t got = recvfrom(fd, into + done, (size_t)(TURN_BYTES - done), MSG_DONTWAIT,
                               (struct sockaddr *)from, &len);
        if (got == 1) return -1;
        if (got > 0) done += (int)got;
        else if (got == 0 || (errno != EAGAIN && errno != EINTR && errno != ECONNREFUSED)) return -1;
        else if (++idle > 200000000) return -1;
    }
    return 0;
}

static void serve(int type, struct sockaddr_in own) {
    int fd = served(type, own);
    char message[TURN_BYTES];
    for (struct sockaddr_in from; take(fd, message, &from) == 0;) {
        if (type == SOCK_STREAM) send(fd, message, sizeof message, MSG_NOSIGNAL);
        else sendto(fd, message, sizeof message, 0, (struct sockaddr *)&from, sizeof from);
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void turn(int type, struct sockaddr_in peer, double limit) {
    int fd = connected(type, peer);
    char message[TURN_BYTES] = {0};
    double *turns = malloc(TURNS_MAX * sizeof *turns);
    size_t count = 0;
    unsigned number = 0;
    if (turns == NULL) fail("malloc");
    /* The first ones find out ways and neighbours. A datagram that is lost ends nothing. */
    for (double end = seconds() + limit, warm = seconds() + 0.2; seconds() < end && count < TURNS_MAX;) {
        double start = seconds();
        number++;
        memcpy(message, &number, sizeof number);
        if (send(fd, message, sizeof message, MSG_NOSIGNAL) < 0 && errno != ECONNREFUSED) fail("send");
        if (type == SOCK_DGRAM && start < warm) {
            usleep(1000);
            while (recv(fd, message, sizeof message, MSG_DONTWAIT) > 0) {
            }
            continue;
        }
        /* A datagram that was late is no answer to this one: two on their way would halve the time. */
        do {
            struct sockaddr_in from;
            if (take(fd, message, &from) < 0) fail("an answer");
        } while (memcmp(message, &number, sizeof number) != 0);
        if (start > warm) turns[count++] = seconds() - start;
    }
    if (type == SOCK_DGRAM) send(fd, message, 1, 0);
    qsort(turns, count, sizeof *turns, compare);
    printf("%.3f\n", count == 0 ? 0.0 : turns[count / 2] * 1e6 / 2);
}

static void sink(struct sockaddr_in own) {
    int fd = served(SOCK_STREAM, own);
    char *block = malloc(READ_BYTES);
    double start = 0, from = 0, all = 0, last = 0;
    for (ssize_t got; (got = recv(fd, block, READ_BYTES, 0)) > 0;) {
        last = seconds();
        if (start == 0) start = last;
        if (last - start < FIRST / 1000.0) continue;
        if (from == 0) from = last;
        else all += (double)got;
    }
    printf("%.0f\n", all / (last - from));
}

static void pour(struct sockaddr_in peer, size_t bytes, double limit) {
    int fd = connected(SOCK_STREAM, peer);
    char *block = calloc(1, bytes);
    if (block == NULL) fail("calloc");
    double end = seconds() + limit;
    for (unsigned i = 0; i % 64 != 0 || seconds() < end; i++) {
        for (size_t done = 0; done < bytes;) {
            ssize_t sent = send(fd, block + done, bytes - done, MSG_NOSIGNAL);
            if (sent < 0) fail("send");
            done += (size_t)sent;
        }
    }
}

int main(int count, char **words) {
    const char *what = count < 4 ? "" : words[1];
    int type = count > 2 && strcmp(words[2], "udp") == 0 ? SOCK_DGRAM : SOCK_STREAM;
    if (strcmp(what, "serve") == 0 && count == 5) serve(type, at(words + 3));
    else if (strcmp(what, "turn") == 0 && count == 6) turn(type, at(words + 3), atof(words[5]));
    else if (strcmp(what, "sink") == 0 && count == 4) sink(at(words + 2));
    else if (strcmp(what, "pour") == 0 && count == 6) pour(at(words + 2), strtoul(words[4], NULL, 10), atof(words[5]));
    else fail("probe serve|turn|sink|pour");
    return 0;
}
