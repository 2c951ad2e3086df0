/* What a plain program gets from sockets: rates of one connection, and round trips of one pair.
 *
 *   probe stream BYTES SECONDS   one process sends blocks over TCP, another receives: messages/s
 *   probe turn tcp|udp SECONDS   64 bytes there and back, calls that block: median one way, in us
 *   probe spin tcp|udp SECONDS   the same, calls that do not block, tried again and again
 *   probe raw SECONDS            the same over shared memory and nothing else: what the machine can
 *   probe three sleeps|yields|spins SECONDS [pinned]
 *                                sockperf's under-load mode over shared memory: the first
 *                                never sleeps and asks 10,000 times a second, the second spins
 *                                and answers each hundredth time, the third waits for answers
 *                                in this way. One way, in us: median, mean, 99 %
 *
 * The two processes are pinned to the first and the last processor; the three are where the kernel
 * puts them, or, pinned, the second on the first one and the others on the last. Nothing here knows of
 * the library: it is run with it and without. `benches/sockets/run` calls it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TURN_BYTES = 64, TURNS_MAX = 4000000, READ_BYTES = 65536, SHARED_BYTES = 4096 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void pin(int last) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(last ? sysconf(_SC_NPROCESSORS_ONLN) - 1 : 0, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

static int port_of(int fd) {
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &len) < 0) fail("getsockname");
    return ntohs(at.sin_port);
}

static int bound(int type) {
    struct sockaddr_in at = loopback(0);
    int fd = socket(AF_INET, type, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) < 0) fail("bind");
    return fd;
}

/* Both ends of a pair, in two processes: returns this one's socket, and says which one it is. */
static int pair(int type, pid_t *child) {
    int first = bound(type), second = type == SOCK_DGRAM ? bound(type) : -1;
    struct sockaddr_in to = loopback(port_of(first));
    struct sockaddr_in back = loopback(second < 0 ? 1 : port_of(second));
    int on = 1;
    if (type == SOCK_STREAM && listen(first, 1) < 0) fail("listen");
    *child = fork();
    if (*child < 0) fail("fork");
    pin(*child == 0);
    if (type == SOCK_DGRAM) {
        int fd = *child == 0 ? second : first;
        struct sockaddr_in *peer = *child == 0 ? &to : &back;
        close(*child == 0 ? first : second);
        if (connect(fd, (struct sockaddr *)peer, sizeof *peer) < 0) fail("connect");
        return fd;
    }
    if (*child == 0) {
        close(first);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0) fail("connect");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        return fd;
    }
    int fd = accept(first, NULL, NULL);
    if (fd < 0) fail("accept");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    close(first);
    return fd;
}

static void stream(size_t bytes, double limit) {
    pid_t child;
    int fd = pair(SOCK_STREAM, &child);
    char *block = calloc(1, bytes > READ_BYTES ? bytes : READ_BYTES);
    if (block == NULL) fail("calloc");
    if (child == 0) {
        double end = seconds() + limit;
        for (unsigned i = 0; i % 256 != 0 || seconds() < end; i++) {
            for (size_t done = 0; done < bytes;) {
                ssize_t sent = send(fd, block + done, bytes - done, 0);
                if (sent < 0) fail("send");
                done += (size_t)sent;
            }
        }
        close(fd);
        _exit(0);
    }
    double start = 0, all = 0;
    for (ssize_t got; (got = recv(fd, block, READ_BYTES, 0)) > 0;) {
        if (start == 0) start = seconds();
        all += (double)got;
    }
    double took = seconds() - start;
    waitpid(child, NULL, 0);
    printf("%.0f\n", all / (double)bytes / took);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One whole message, or -1 at the end. */
static int take(int fd, char *into, int flags) {
    for (int done = 0; done < TURN_BYTES;) {
        ssize_t got = recv(fd, into + done, (size_t)(TURN_BYTES - done), flags);
        if (got > 0) done += (int)got;
        else if (got == 0 || (errno != EAGAIN && errno != EINTR)) return -1;
    }
    return 0;
}

static void report(double *turns, size_t count) {
    qsort(turns, count, sizeof *turns, compare);
    printf("%.3f\n", count == 0 ? 0.0 : turns[count / 2] * 1e6 / 2);
}

static void turn(int type, int flags, double limit) {
    pid_t child;
    int fd = pair(type, &child);
    char message[TURN_BYTES] = {0};
    if (child != 0) {
        signal(SIGPIPE, SIG_IGN);
        while (take(fd, message, flags) == 0 && send(fd, message, sizeof message, 0) > 0) {}
        _exit(0);
    }
    double *turns = calloc(TURNS_MAX, sizeof *turns), end = seconds() + limit;
    size_t count = 0;
    while (count < TURNS_MAX) {
        double start = seconds();
        if (start > end) break;
        if (send(fd, message, sizeof message, 0) < 0 || take(fd, message, flags) < 0) fail("turn");
        turns[count++] = seconds() - start;
    }
    report(turns, count);
    if (type == SOCK_DGRAM) kill(getppid(), SIGTERM);
    fflush(stdout);
    _exit(0);
}

static void *shared_page(void) {
    void *page = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) fail("mmap");
    return page;
}

struct side {
    _Alignas(128) atomic_ulong turn;
    _Alignas(128) char message[TURN_BYTES];
};

static void raw(double limit) {
    struct side *sides = shared_page();
    char message[TURN_BYTES] = {0};
    pid_t child = fork();
    pin(child == 0);
    struct side *in = &sides[child == 0], *out = &sides[child != 0];
    if (child == 0) {
        for (unsigned long i = 1;; i++) {
            while (atomic_load_explicit(&in->turn, memory_order_acquire) != i) {}
            memcpy(message, in->message, sizeof message);
            memcpy(out->message, message, sizeof message);
            atomic_store_explicit(&out->turn, i, memory_order_release);
        }
    }
    double *turns = calloc(TURNS_MAX, sizeof *turns), end = seconds() + limit;
    size_t count = 0;
    for (unsigned long i = 1; count < TURNS_MAX; i++) {
        double start = seconds();
        if (start > end) break;
        memcpy(out->message, message, sizeof message);
        atomic_store_explicit(&out->turn, i, memory_order_release);
        while (atomic_load_explicit(&in->turn, memory_order_acquire) != i) {}
        memcpy(message, in->message, sizeof message);
        turns[count++] = seconds() - start;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    report(turns, count);
}

enum { ASKS_A_SECOND = 10000, ANSWERED = 100, KEPT = 256 };

struct three {
    _Alignas(128) atomic_ulong asked;
    /* When each that is answered was asked. */
    double when[KEPT];
    _Alignas(128) atomic_uint answered;
    _Alignas(128) atomic_int over;
};
_Static_assert(sizeof(struct three) <= SHARED_BYTES, "all of it is in the page");

static void answer(struct three *all, int sleeps) {
    for (unsigned answered = 0;;) {
        if (atomic_load_explicit(&all->asked, memory_order_acquire) / ANSWERED <= answered) continue;
        atomic_store_explicit(&all->answered, ++answered, memory_order_release);
        if (!sleeps) continue;
        syscall(SYS_futex, &all->answered, FUTEX_WAKE, 1, NULL, NULL, 0);
        sched_yield();
    }
}

static void await(struct three *all, char how) {
    double *turns = calloc(TURNS_MAX, sizeof *turns), sum = 0;
    size_t count = 0;
    for (unsigned seen = 0; !atomic_load(&all->over) && count < TURNS_MAX;) {
        unsigned now = atomic_load_explicit(&all->answered, memory_order_acquire);
        if (atomic_load(&all->over)) break; /* What ended the wait may be the end alone. */
        if (now == seen) {
            if (how == 's') syscall(SYS_futex, &all->answered, FUTEX_WAIT, now, NULL, NULL, 0);
            if (how == 'y') sched_yield();
            continue;
        }
        seen++;
        turns[count] = (seconds() - all->when[seen % KEPT]) * 1e6 / 2;
        sum += turns[count++];
    }
    qsort(turns, count, sizeof *turns, compare);
    double mean = sum / (double)count;
    if (count > 0) printf("%.1f %.1f %.1f\n", turns[count / 2], mean, turns[count * 99 / 100]);
    fflush(stdout);
    _exit(0);
}

static void three(char how, double limit, int pinned) {
    struct three *all = shared_page();
    if (pinned) pin(0);
    pid_t second = fork();
    if (second == 0) answer(all, how == 's');
    if (pinned) pin(1);
    pid_t third = fork();
    if (third == 0) await(all, how);
    double start = seconds(), now;
    for (unsigned long i = 1; (now = seconds()) < start + limit; i++) {
        while ((now = seconds()) < start + (double)i / ASKS_A_SECOND) {}
        if (i % ANSWERED == 0) all->when[i / ANSWERED % KEPT] = now;
        atomic_store_explicit(&all->asked, i, memory_order_release);
    }
    atomic_store(&all->over, 1);
    atomic_fetch_add(&all->answered, 1);
    syscall(SYS_futex, &all->answered, FUTEX_WAKE, 1, NULL, NULL, 0);
    waitpid(third, NULL, 0);
    kill(second, SIGKILL);
    waitpid(second, NULL, 0);
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    if (strcmp(what, "stream") == 0 && count == 4) {
        stream((size_t)atol(words[2]), atof(words[3]));
    } else if ((strcmp(what, "turn") == 0 || strcmp(what, "spin") == 0) && count == 4) {
        int type = strcmp(words[2], "udp") == 0 ? SOCK_DGRAM : SOCK_STREAM;
        turn(type, what[0] == 's' ? MSG_DONTWAIT : 0, atof(words[3]));
    } else if (strcmp(what, "raw") == 0 && count == 3) {
        raw(atof(words[2]));
    } else if (strcmp(what, "three") == 0 && (count == 4 || count == 5)) {
        three(strcmp(words[2], "spins") == 0 ? 'b' : words[2][0], atof(words[3]), count == 5);
    } else {
        fprintf(stderr, "usage: probe stream BYTES SECONDS | turn|spin tcp|udp SECONDS | raw SECONDS |"
                        " three sleeps|yields|spins SECONDS [pinned]\n");
        return 2;
    }
    return 0;
}
