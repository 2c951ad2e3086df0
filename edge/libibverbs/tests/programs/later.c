/* Functions of later releases than the header that this is compiled with, found by name and version as a program of theirs
 * is linked: buffers of the library, and registration by attributes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)
#define REFUSED(what, why) do { errno = 0; MUST(!(what) && errno == (why)); } while (0)

/* Of rdma-core 65. */
struct buf;
struct attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	struct buf *buf;
};
enum { IOVA = 1, ADDR = 2, FD = 4, BUF = 32 };

static void *named(const char *name, const char *version)
{
	void *found = dlvsym(RTLD_DEFAULT, name, version);
	if (!found) {
		fprintf(stderr, "no %s@%s\n", name, version);
		exit(1);
	}
	return found;
}

int main(void)
{
	void *(*alloc)(struct ibv_pd *, size_t, struct buf **) = named("ibv_alloc_buf", "IBVERBS_1.17");
	void (*release)(struct buf *) = named("ibv_free_buf", "IBVERBS_1.17");
	struct ibv_mr *(*reg_buf)(struct ibv_pd *, struct buf *, void *, size_t, int) = named("ibv_reg_buf_mr", "IBVERBS_1.17");
	struct ibv_mr *(*reg)(struct ibv_pd *, struct attr *) = named("ibv_reg_mr_ex", "IBVERBS_1.15");
	int (*export)(struct buf *) = named("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list);
	struct ibv_context *context = ibv_open_device(*list);
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	struct buf *buf;
	MUST(context && pd && other);

	REFUSED(alloc(pd, 0, &buf), EINVAL);
	REFUSED(alloc(pd, (size_t)1 << 62, &buf), ENOMEM);
	char *memory = alloc(pd, 8192, &buf);
	MUST(memory && (uintptr_t)memory % 4096 == 0);
	memset(memory, 1, 8192);
	MUST(ibv_dealloc_pd(pd) == EBUSY);
	MUST((errno = 0, export(buf)) == -1 && errno == ENODATA);
	REFUSED(reg_buf(other, buf, memory, 4096, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	REFUSED(reg_buf(pd, buf, memory, 8193, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	REFUSED(reg_buf(pd, buf, memory + 4096, 4097, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	REFUSED(reg_buf(pd, buf, memory - 1, 4096, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	REFUSED(reg_buf(pd, NULL, memory, 4096, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	struct ibv_mr *mr = reg_buf(pd, buf, memory + 4096, 4096, IBV_ACCESS_LOCAL_WRITE);
	MUST(mr && mr->addr == memory + 4096 && mr->length == 4096 && mr->pd == pd);
	struct attr attr = {.length = 4096, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = ADDR | BUF, .addr = memory, .buf = buf};
	struct ibv_mr *second = reg(pd, &attr);
	MUST(second && second->addr == memory && second->lkey != mr->lkey);
	MUST(!ibv_dereg_mr(second));
	release(buf);
	MUST(!ibv_dereg_mr(mr)); /* Its memory was there until now. */

	static char own[4096];
	attr = (struct attr){.length = sizeof own, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = ADDR | IOVA, .addr = own, .iova = 64};
	MUST((mr = reg(pd, &attr)) && mr->addr == own && !ibv_dereg_mr(mr));
	REFUSED(reg(pd, NULL), EINVAL);
	attr.comp_mask = IOVA;
	REFUSED(reg(pd, &attr), EINVAL);
	attr.comp_mask = ADDR | FD;
	REFUSED(reg(pd, &attr), EOPNOTSUPP);
	attr.comp_mask = ADDR | 1 << 20;
	REFUSED(reg(pd, &attr), EOPNOTSUPP);
	MUST(!ibv_dealloc_pd(pd) && !ibv_dealloc_pd(other) && !ibv_close_device(context));
	ibv_free_device_list(list);
	return 0;
}
