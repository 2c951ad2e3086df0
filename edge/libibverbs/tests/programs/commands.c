/* What releases of librdmacm write to the rdma_cm device that are older or newer than those that are tried: shorter and
 * longer commands and answers, and commands of rdma-core 60 and later.
 *
 * A library, as `hostile.c` is. Says what went wrong, or how much was right. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CREATE_ID = 0, DESTROY_ID = 1, GET_EVENT = 12, SET_OPTION = 14, RESOLVE_IB_SERVICE = 23, WRITE_CM_EVENT = 24 };
enum { USER = 18, INTERNAL = 19 };

static unsigned char answer[512], body[512];
static int device, right;

static void put(size_t at, uint64_t value, size_t len)
{
    memcpy(body + at, &value, len);
}

/* Writes a command of `in` bytes, whose answer may have `out`; gives 0 or the number of the error. */
static int command(uint32_t number, uint16_t in, uint16_t out)
{
    unsigned char whole[8 + sizeof body];
    memcpy(whole, &number, 4);
    memcpy(whole + 4, &in, 2);
    memcpy(whole + 6, &out, 2);
    memcpy(whole + 8, body, in);
    memset(answer, 0xee, sizeof answer);
    errno = 0;
    return write(device, whole, 8 + in) == 8 + in ? 0 : errno;
}

static int must(int is, const char *what)
{
    right += is;
    if (!is)
        fprintf(stderr, "wrong: %s; errno %d\n", what, errno);
    return is;
}

static uint64_t answered(size_t at, size_t len)
{
    uint64_t value = 0;
    memcpy(&value, answer + at, len);
    return value;
}

static int create(uint64_t uid, uint16_t in)
{
    memset(body, 0, sizeof body);
    put(0, uid, 8);
    put(8, (uintptr_t)answer, 8);
    put(16, 0x106, 2);
    return command(CREATE_ID, in, 4) == 0 ? (int)answered(0, 4) : -1;
}

static int event(uint32_t id, uint32_t kind, uint32_t status, uint64_t argument)
{
    memset(body, 0, sizeof body);
    put(0, id, 4);
    put(8, kind, 4);
    put(12, status, 4);
    put(16, argument, 8);
    return command(WRITE_CM_EVENT, 320, 0);
}

/* Sets an option, whose value is one. */
static int option(uint32_t id, uint32_t level, uint32_t name)
{
    static uint32_t one = 1;
    memset(body, 0, sizeof body);
    put(0, (uintptr_t)&one, 8);
    put(8, id, 4);
    put(12, level, 4);
    put(16, name, 4);
    put(20, sizeof one, 4);
    return command(SET_OPTION, 24, 0);
}

static int next(uint16_t in, uint16_t out)
{
    memset(body, 0, sizeof body);
    put(0, (uintptr_t)answer, 8);
    return command(GET_EVENT, in, out);
}

int run(const char *a, const char *b)
{
    (void)a, (void)b;
    device = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (device < 0) {
        perror("no device");
        return 1;
    }
    int id = create(77, 24), other = create(78, 24 + 16);
    must(id > 0 && other > 0 && id != other, "identifiers, with a command that is longer than it is known");
    must(create(79, 16) < 0 && errno == EINVAL, "a command that ends too soon");
    must(next(8, 336) == EAGAIN, "no event yet");

    must(event(id, USER, 5, 0x123456789a) == 0, "an event of the program");
    must(event(other, INTERNAL, -7, 9) == 0, "an event of the library");
    must(event(id, 4, 0, 0) == EINVAL, "an event that only peers bring");
    must(event(4711, USER, 0, 0) == ENOENT, "an event of no identifier");
    must(next(8, 336) == 0 && answered(0, 8) == 77 && answered(8, 4) == (unsigned)id, "whose it is");
    must(answered(12, 4) == USER && answered(16, 4) == 5 && answered(20, 8) == 0x123456789a, "what it says");
    must(next(8 + 8, 500) == 0 && answered(0, 8) == 78 && answered(12, 4) == INTERNAL, "the other one, with more room");
    must(answered(16, 4) == (uint32_t)-7 && answered(20, 8) == 9, "what that says");
    must(answer[336] == 0xee, "no more than there is");

    must(event(id, USER, 1, 2) == 0 && next(8, 320) == ENOSPC, "too little room for an event");
    must(next(8, 324) == 0 && answered(12, 4) == USER && answer[324] == 0xee, "as little room as there may be");

    must(option(id, 0, 1) == 0, "an option: that an address may be used again");
    must(option(id, 0, 77) == ENOSYS && option(id, 1, 77) == ENOSYS, "options that no release has");
    must(option(id, 9, 1) == ENOSYS, "a level that no release has");

    memset(body, 0, sizeof body);
    put(0, id, 4);
    must(command(RESOLVE_IB_SERVICE, 88, 0) == ENOSYS, "services by name are a subnet manager's");
    must(command(RESOLVE_IB_SERVICE + 2, 88, 0) == EINVAL, "a command that no release has");

    memset(body, 0, sizeof body);
    put(0, (uintptr_t)answer, 8);
    put(8, id, 4);
    must(command(DESTROY_ID, 16, 4) == 0 && answered(0, 4) == 2, "the events that it has had");
    close(device);
    printf("%d\n", right);
    return 0;
}
