/* Writes commands of any bytes to the rdma_cm device, as a librdmacm without any sense would.
 *
 * It is compiled as a library whose name is that of librdmacm, so that its calls lead where librdmacm's do, and loaded by
 * itself as a program: `hostile LIBRARY SEED COUNT`. Prints how many commands were accepted, and how many events came. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t state;

/* SplitMix64. */
static uint64_t number(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static int one_in(int n)
{
    return number() % n == 0;
}

static unsigned char answer[65536];

/* An address for an answer or a value: mostly a good one. */
static uint64_t place(void)
{
    if (one_in(8))
        return 0;
    if (one_in(8))
        return number() >> (number() % 64);
    return (uintptr_t)answer;
}

static void put(unsigned char *body, size_t at, const void *value, size_t len)
{
    memcpy(body + at, value, len);
}

static void put32(unsigned char *body, size_t at, uint32_t value)
{
    put(body, at, &value, 4);
}

static void put64(unsigned char *body, size_t at, uint64_t value)
{
    put(body, at, &value, 8);
}

static void put_address(unsigned char *body, size_t at)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(number() % 4 ? 20000 + number() % 8 : 0)};
    in.sin_addr.s_addr = htonl(one_in(3) ? INADDR_ANY : INADDR_LOOPBACK);
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = in.sin_port, .sin6_addr = in6addr_loopback};
    if (one_in(4))
        put(body, at, &in6, sizeof in6);
    else
        put(body, at, &in, sizeof in);
}

/* Where the fields of each command are: the place of the answer, the identifier, addresses, the length in all. */
static const struct {
    int place, id, address[2], len;
} SHAPE[25] = {
    {8, -1, {-1, -1}, 24},    {0, 8, {-1, -1}, 16},    {-1, 36, {8, -1}, 40},     {-1, 56, {0, 28}, 64},
    {-1, 0, {-1, -1}, 8},     {0, 8, {-1, -1}, 16},    {-1, 272, {-1, -1}, 288},  {-1, 0, {-1, -1}, 8},
    {-1, 280, {-1, -1}, 296}, {-1, 0, {-1, -1}, 264},  {-1, 0, {-1, -1}, 4},      {0, 8, {-1, -1}, 16},
    {0, -1, {-1, -1}, 8},     {0, 8, {-1, -1}, 16},    {0, 8, {-1, -1}, 24},      {-1, 0, {-1, -1}, 8},
    {0, 44, {16, -1}, 48},    {0, 8, {-1, -1}, 16},    {0, 8, {-1, -1}, 16},      {0, 8, {-1, -1}, 16},
    {-1, 0, {8, -1}, 136},    {-1, 0, {16, 144}, 272}, {0, 16, {24, -1}, 152},    {-1, 0, {-1, -1}, 80},
    {-1, 0, {-1, -1}, 320},
};

int run(const char *seed, const char *count)
{
    int accepted = 0, events = 0;
    state = strtoull(seed, NULL, 0);
    int fds[2];
    for (int i = 0; i < 2; i++) {
        struct stat status;
        fds[i] = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC | O_NONBLOCK);
        if (fds[i] < 0 || fstat(fds[i], &status) != 0 || !S_ISCHR(status.st_mode)) {
            perror("no device");
            return 1;
        }
    }
    for (int left = atoi(count); left > 0; left--) {
        struct {
            uint32_t command;
            uint16_t in, out;
            unsigned char body[1024];
        } command;
        unsigned which = one_in(20) ? number() : number() % 25;
        /* Half of the commands make progress. */
        if (one_in(4))
            which = one_in(2) ? 0 : 12;
        for (size_t i = 0; i < sizeof command.body; i++)
            command.body[i] = one_in(2) ? 0 : number();
        command.command = which;
        size_t len = number() % sizeof command.body;
        command.out = 1024;
        if (which < 25) {
            len = SHAPE[which].len;
            if (SHAPE[which].place >= 0)
                put64(command.body, SHAPE[which].place, place());
            if (SHAPE[which].id >= 0)
                put32(command.body, SHAPE[which].id, number() % 64);
            for (int i = 0; i < 2; i++)
                if (SHAPE[which].address[i] >= 0)
                    put_address(command.body, SHAPE[which].address[i]);
            if (which == 0) {
                uint16_t spaces[] = {0x106, 0x111, 0x2, 0x13f};
                put64(command.body, 0, 1 + number() % 1000);
                put(command.body, 16, &spaces[number() % 4], 2);
            }
            if (which == 14 && !one_in(4)) {
                put32(command.body, 12, 0);
                put32(command.body, 16, number() % 4);
                put32(command.body, 20, one_in(2) ? 1 : 4);
            }
            if (which == 18)
                put32(command.body, 12, fds[number() % 2]);
            if (which == 19)
                put32(command.body, 12, number() % 4);
        }
        command.in = one_in(16) ? number() : len;
        if (one_in(16))
            command.out = number();
        size_t written = one_in(16) ? number() % (len + 9) : len + 8;
        ssize_t result = write(fds[number() % 2], &command, written > sizeof command ? sizeof command : written);
        if (result >= 0) {
            accepted++;
            events += which == 12;
        }
    }
    for (int i = 0; i < 2; i++)
        close(fds[i]);
    printf("%d %d\n", accepted, events);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    void *library = dlopen(argv[1], RTLD_NOW);
    int (*call)(const char *, const char *) = library ? dlsym(library, "run") : NULL;
    void **(*list)(int *) = dlsym(RTLD_DEFAULT, "ibv_get_device_list");
    if (!call || !list) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    list(NULL);
    return call(argv[2], argv[3]);
}
