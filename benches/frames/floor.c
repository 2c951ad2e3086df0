/* The least that a frame costs by AF_XDP here, in copy mode: no protocol, no stack, and nothing of the library's.
 *
 *   floor serve INTERFACE      sends each frame back, never sleeps; until it is killed
 *   floor turn INTERFACE S     frames of 106 bytes, as a datagram of 64, there and back for S seconds: median one way, in us
 *   floor sink INTERFACE       receives a stream and copies 1,024 bytes out of each frame: bytes/s of these, from the first
 *                              half second on, until it pauses
 *   floor pour INTERFACE S     sends it in frames as long as packets of a WRITE, 32 in a call
 *
 * Each end puts a program on its interface, in native mode, that redirects all that comes on the first queue.
 * `benches/frames/run` calls it. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FRAMES = 512, FRAME_BYTES = 2048, HEADROOM = 256, TURN_BYTES = 106, TURNS_MAX = 4000000, NATIVE = 4, KIND = 0x88b5,
       POUR_BYTES = 1082, CARRIED = 1024, AT_ONCE = 32 };

/* One of the kernel's rings: its two positions, its flags, and its entries. */
struct ring {
    uint32_t *producer, *consumer, *flags, size;
    void *entries;
};

static struct ring receive, transmit, fill, completion;
static char *umem;
static int fd;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int bpf(int what, union bpf_attr *with) {
    int got = (int)syscall(SYS_bpf, what, with, sizeof *with);
    if (got < 0) fail("bpf");
    return got;
}

static struct ring mapped(const struct xdp_ring_offset *at, uint32_t size, size_t entry, uint64_t offset) {
    char *base = mmap(NULL, at->desc + size * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, (off_t)offset);
    if (base == MAP_FAILED) fail("mmap");
    return (struct ring){(void *)(base + at->producer), (void *)(base + at->consumer), (void *)(base + at->flags), size,
                         base + at->desc};
}

static void set(int name, uint32_t size) {
    if (setsockopt(fd, SOL_XDP, name, &size, sizeof size) < 0) fail("a ring");
}

/* A socket on the first queue, and the program that gives it all that comes there. */
static void open_all(unsigned index) {
    fd = socket(AF_XDP, SOCK_RAW, 0);
    umem = mmap(NULL, FRAMES * FRAME_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (fd < 0 || umem == MAP_FAILED) fail("a socket");
    struct xdp_umem_reg all = {.addr = (uintptr_t)umem, .len = FRAMES * FRAME_BYTES, .chunk_size = FRAME_BYTES};
    if (setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &all, sizeof all) < 0) fail("memory");
    set(XDP_UMEM_FILL_RING, FRAMES);
    set(XDP_UMEM_COMPLETION_RING, FRAMES);
    set(XDP_RX_RING, FRAMES);
    set(XDP_TX_RING, FRAMES);
    struct xdp_mmap_offsets at;
    socklen_t len = sizeof at;
    if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &len) < 0) fail("offsets");
    receive = mapped(&at.rx, FRAMES, sizeof(struct xdp_desc), XDP_PGOFF_RX_RING);
    transmit = mapped(&at.tx, FRAMES, sizeof(struct xdp_desc), XDP_PGOFF_TX_RING);
    fill = mapped(&at.fr, FRAMES, sizeof(uint64_t), XDP_UMEM_PGOFF_FILL_RING);
    completion = mapped(&at.cr, FRAMES, sizeof(uint64_t), XDP_UMEM_PGOFF_COMPLETION_RING);
    /* The first half is for what comes, the first frame of the other for what leaves. */
    for (uint32_t i = 0; i < FRAMES / 2; i++) ((uint64_t *)fill.entries)[i] = i * FRAME_BYTES;
    __atomic_store_n(fill.producer, FRAMES / 2, __ATOMIC_RELEASE);
    struct sockaddr_xdp own = {.sxdp_family = AF_XDP, .sxdp_ifindex = index, .sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP};
    if (bind(fd, (struct sockaddr *)&own, sizeof own) < 0) fail("bind");
    union bpf_attr made = {.map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1};
    int map = bpf(BPF_MAP_CREATE, &made), zero = 0;
    union bpf_attr entry = {.map_fd = (uint32_t)map, .key = (uintptr_t)&zero, .value = (uintptr_t)&fd};
    bpf(BPF_MAP_UPDATE_ELEM, &entry);
    struct bpf_insn code[] = {
        {.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = 16}, /* the queue */
        {.code = BPF_LD | BPF_IMM | BPF_DW, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = map},
        {0},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS},
        {.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map},
        {.code = BPF_JMP | BPF_EXIT},
    };
    union bpf_attr program = {.prog_type = BPF_PROG_TYPE_XDP, .insns = (uintptr_t)code,
                              .insn_cnt = sizeof code / sizeof *code, .license = (uintptr_t)"GPL"};
    union bpf_attr link = {.link_create = {.prog_fd = (uint32_t)bpf(BPF_PROG_LOAD, &program), .target_ifindex = index,
                                           .attach_type = BPF_XDP, .flags = NATIVE}};
    bpf(BPF_LINK_CREATE, &link); /* It ends with this process. */
}

static void send_one(const void *bytes) {
    uint32_t at = *transmit.producer, done = *completion.producer;
    uint64_t place = (FRAMES / 2 + at % (FRAMES / 2)) * FRAME_BYTES;
    __atomic_store_n(completion.consumer, done, __ATOMIC_RELEASE);
    memcpy(umem + place, bytes, TURN_BYTES);
    ((struct xdp_desc *)transmit.entries)[at % FRAMES] = (struct xdp_desc){.addr = place, .len = TURN_BYTES};
    __atomic_store_n(transmit.producer, at + 1, __ATOMIC_RELEASE);
    if (*transmit.flags & XDP_RING_NEED_WAKEUP && sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN) fail("send");
}

/* The next frame of ours; 0 if none has come yet. What the kernel writes next is asked for then: it is near when it is there. */
static int take(char *into) {
    uint32_t at = *receive.consumer, next = *fill.producer;
    if (__atomic_load_n(receive.producer, __ATOMIC_ACQUIRE) == at) {
        const char *frame = umem + ((uint64_t *)fill.entries)[at % FRAMES] + HEADROOM;
        __builtin_prefetch(&((struct xdp_desc *)receive.entries)[at % FRAMES]);
        for (int line = 0; line < TURN_BYTES; line += 64) __builtin_prefetch(frame + line);
        return 0;
    }
    struct xdp_desc one = ((struct xdp_desc *)receive.entries)[at % FRAMES];
    memcpy(into, umem + one.addr, TURN_BYTES);
    __atomic_store_n(receive.consumer, at + 1, __ATOMIC_RELEASE);
    ((uint64_t *)fill.entries)[next % FRAMES] = one.addr / FRAME_BYTES * FRAME_BYTES;
    __atomic_store_n(fill.producer, next + 1, __ATOMIC_RELEASE);
    return one.len == TURN_BYTES && into[12] == (char)(KIND >> 8) && into[13] == (char)KIND;
}

/* Gives the kernel what was written; what it does not take it takes later. */
static void leave(void) {
    if (*transmit.flags & XDP_RING_NEED_WAKEUP && sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY &&
        errno != ENOBUFS)
        fail("send");
}

static void pour(double limit) {
    static char bytes[POUR_BYTES];
    memset(bytes, 0xff, 6);
    bytes[12] = (char)(KIND >> 8), bytes[13] = (char)KIND;
    uint32_t at = *transmit.producer, first = at;
    for (double end = seconds() + limit; seconds() < end;) {
        uint32_t done = __atomic_load_n(completion.producer, __ATOMIC_ACQUIRE);
        __atomic_store_n(completion.consumer, done, __ATOMIC_RELEASE);
        for (int i = 0; i < AT_ONCE && at - first - done < FRAMES / 2; i++, at++) {
            uint64_t place = (FRAMES / 2 + at % (FRAMES / 2)) * FRAME_BYTES;
            memcpy(umem + place, bytes, POUR_BYTES);
            ((struct xdp_desc *)transmit.entries)[at % FRAMES] = (struct xdp_desc){.addr = place, .len = POUR_BYTES};
        }
        __atomic_store_n(transmit.producer, at, __ATOMIC_RELEASE);
        leave();
    }
}

static void sink(void) {
    static char into[CARRIED];
    double start = 0, from = 0, last = 0, all = 0;
    for (uint64_t idle = 0; start == 0 || idle < 100000000;) {
        uint32_t at = *receive.consumer, next = *fill.producer, count = __atomic_load_n(receive.producer, __ATOMIC_ACQUIRE) - at;
        if (count == 0) {
            idle++;
            continue;
        }
        last = seconds(), idle = 0;
        if (start == 0) start = last;
        if (from == 0 && last - start > 0.5) from = last;
        for (uint32_t i = 0; i < count; i++, at++, next++) {
            struct xdp_desc one = ((struct xdp_desc *)receive.entries)[at % FRAMES];
            if (one.len == POUR_BYTES) {
                memcpy(into, umem + one.addr + POUR_BYTES - CARRIED, CARRIED);
                __asm__ volatile("" ::: "memory");
                if (from != 0) all += CARRIED;
            }
            ((uint64_t *)fill.entries)[next % FRAMES] = one.addr / FRAME_BYTES * FRAME_BYTES;
        }
        __atomic_store_n(receive.consumer, at, __ATOMIC_RELEASE);
        __atomic_store_n(fill.producer, next, __ATOMIC_RELEASE);
    }
    printf("%.0f\n", all / (last - from));
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void turn(double limit) {
    double *turns = malloc(TURNS_MAX * sizeof *turns);
    size_t count = 0;
    char frame[TURN_BYTES] = {0}, back[TURN_BYTES];
    if (turns == NULL) fail("malloc");
    memset(frame, 0xff, 6);
    frame[12] = (char)(KIND >> 8), frame[13] = (char)KIND;
    for (double end = seconds() + limit; seconds() < end && count < TURNS_MAX;) {
        double start = seconds();
        send_one(frame);
        while (!take(back) && seconds() < start + 0.1) {
        }
        turns[count++] = seconds() - start;
    }
    qsort(turns, count, sizeof *turns, compare);
    printf("%.3f\n", count == 0 ? 0.0 : turns[count / 2] * 1e6 / 2);
}

int main(int count, char **words) {
    unsigned index = count > 2 ? if_nametoindex(words[2]) : 0;
    if (index == 0) fail("floor serve|turn|sink|pour INTERFACE");
    open_all(index);
    char frame[TURN_BYTES];
    if (strcmp(words[1], "turn") == 0 && count == 4) turn(atof(words[3]));
    if (strcmp(words[1], "pour") == 0 && count == 4) pour(atof(words[3]));
    if (strcmp(words[1], "sink") == 0) sink();
    while (strcmp(words[1], "serve") == 0) {
        if (take(frame)) send_one(frame);
    }
    return 0;
}
