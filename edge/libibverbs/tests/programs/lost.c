/* Memory of regions that goes while they are registered: accesses end no program, and the program's own faults are as they were.
 * Prints what is other, and ends with how many those are. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { printf("%d: ", __LINE__); fflush(stdout); perror(#what); exit(99); } } while (0)
#define LEN (1 << 16)
#define LONG (1 << 22)
/* Where the system puts nothing by itself: what is unmapped stays so. */
#define ALONE ((void *)0x100000000000)

static struct ibv_context *context;
static struct ibv_pd *pd;
static __thread struct ibv_cq *cq;
static struct ibv_mr *mr;
static char *memory;
static union ibv_gid gid;

static void begin(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list);
	MUST(context = ibv_open_device(*list));
	MUST(pd = ibv_alloc_pd(context));
	MUST(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	MUST(!ibv_query_gid(context, 1, 1, &gid));
	MUST((memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED);
	MUST(mr = ibv_reg_mr(pd, memory, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
}

static struct ibv_qp *made(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	MUST(qp);
	return qp;
}

static void connected(struct ibv_qp *qp, struct ibv_qp *to)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp_num, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } } };
	MUST(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
	MUST(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

enum how { UNMAPPED, TRUNCATED, PROTECTED };
enum role { TARGET, SOURCE, RECEIVE };

/* Uses the region in this role by a new pair of queue pairs, and gives the sender's status. */
static enum ibv_wc_status used(enum role role, struct ibv_mr *region, unsigned len)
{
	struct ibv_qp *a = made(), *b = made();
	connected(a, b);
	connected(b, a);
	struct ibv_sge here = { (uintptr_t)mr->addr, len, mr->lkey }, there = { (uintptr_t)region->addr, len, region->lkey };
	struct ibv_recv_wr receive = { .sg_list = &there, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .wr_id = 1, .sg_list = role == SOURCE ? &there : &here, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.opcode = role == RECEIVE ? IBV_WR_SEND : IBV_WR_RDMA_WRITE }, *bad_send;
	struct ibv_mr *target = role == SOURCE ? mr : region;
	send.wr.rdma.remote_addr = (uintptr_t)target->addr;
	send.wr.rdma.rkey = target->rkey;
	if (role == RECEIVE)
		MUST(!ibv_post_recv(b, &receive, &bad_receive));
	MUST(!ibv_post_send(a, &send, &bad_send));
	struct ibv_wc wc = { .wr_id = 0 };
	while (ibv_poll_cq(cq, 1, &wc) == 0 || wc.wr_id != 1)
		;
	enum ibv_wc_status status = wc.status;
	MUST(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
	while (ibv_poll_cq(cq, 1, &wc))
		;
	return status;
}

static int gone(enum how how, enum role role, unsigned len)
{
	int fd = memfd_create("lost", 0);
	MUST(fd >= 0 && !ftruncate(fd, LEN));
	int flags = how == TRUNCATED ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
	char *place = mmap(ALONE, LEN, PROT_READ | PROT_WRITE, flags, how == TRUNCATED ? fd : -1, 0);
	MUST(place != MAP_FAILED);
	struct ibv_mr *region = ibv_reg_mr(pd, place, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	MUST(region);
	if (how == UNMAPPED)
		MUST(!munmap(place, LEN));
	if (how == TRUNCATED)
		MUST(!ftruncate(fd, 0));
	if (how == PROTECTED)
		MUST(!mprotect(place, LEN, PROT_NONE));
	memset(memory, 7, LEN);
	enum ibv_wc_status status = used(role, region, len);
	/* As by a NIC: it goes to pages that are not the program's any more, or to those that only the program may not touch. */
	int is_right = status == IBV_WC_SUCCESS;
	if (how == PROTECTED && role != SOURCE)
		is_right &= !mprotect(place, LEN, PROT_READ) && place[0] == 7 && place[len - 1] == 7;
	if (!is_right)
		printf("how %d, role %d, %u bytes: %s\n", how, role, len, ibv_wc_status_str(status));
	MUST(!ibv_dereg_mr(region));
	close(fd);
	return !is_right;
}

static struct ibv_mr *far;

static void *writer(void *wrong)
{
	MUST(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	*(int *)wrong = used(TARGET, far, LONG) != IBV_WC_SUCCESS;
	MUST(!ibv_destroy_cq(cq));
	return NULL;
}

/* Threads that find the same pages missing. */
static int together(void)
{
	void *here = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *there = ALONE;
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, wrong[2], all = 0;
	struct ibv_mr *before = mr;
	MUST(mr = ibv_reg_mr(pd, here, LONG, rights));
	for (int round = 0; round < 3; round++) {
		MUST(mmap(there, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == there);
		MUST(far = ibv_reg_mr(pd, there, LONG, rights));
		MUST(!munmap(there, LONG));
		pthread_t threads[2];
		for (int i = 0; i < 2; i++)
			MUST(!pthread_create(&threads[i], NULL, writer, &wrong[i]));
		for (int i = 0; i < 2; i++)
			MUST(!pthread_join(threads[i], NULL));
		all += wrong[0] + wrong[1];
		MUST(!ibv_dereg_mr(far));
	}
	MUST(!ibv_dereg_mr(mr));
	mr = before;
	if (all)
		printf("together: %d\n", all);
	return all;
}

static char *watched;
static volatile int seen, over;

static void on_write(int signal, siginfo_t *info, void *context)
{
	(void)context;
	if (signal != SIGSEGV || (char *)info->si_addr != watched)
		_exit(9);
	seen++;
	mprotect(watched, 4096, PROT_READ | PROT_WRITE);
}

static void *sender(void *none)
{
	MUST(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	while (!over)
		used(SOURCE, far, LONG);
	return none;
}

/* A program that learns by faults what it writes to sees all of them, while another thread sends the very bytes. */
static void tracks(void)
{
	watched = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(far = ibv_reg_mr(pd, watched, LONG, IBV_ACCESS_LOCAL_WRITE));
	void *here = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(mr = ibv_reg_mr(pd, here, LONG, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	pthread_t thread;
	MUST(!pthread_create(&thread, NULL, sender, NULL));
	for (int i = 0; i < 500; i++) {
		MUST(!mprotect(watched, 4096, PROT_READ));
		*(volatile char *)watched = i;
	}
	over = 1;
	MUST(!pthread_join(thread, NULL));
	_exit(seen == 500 ? 7 : 8);
}

static void tracked(void)
{
	struct sigaction action = { .sa_sigaction = on_write, .sa_flags = SA_SIGINFO };
	MUST(!sigaction(SIGSEGV, &action, NULL));
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)context;
	_exit(signal == SIGSEGV && info->si_addr == (void *)16 ? 7 : 8);
}

/* The program's own faults: how a child ends that has registered memory. */
static int own(const char *what, void (*before)(void), void (*after)(void), int exit_code, int signal)
{
	fflush(stdout);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		if (before)
			before();
		begin();
		after();
		_exit(0);
	}
	int status;
	MUST(waitpid(child, &status, 0) == child);
	int is_right = signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal
			      : WIFEXITED(status) && WEXITSTATUS(status) == exit_code;
	if (!is_right)
		printf("%s: %x\n", what, status);
	return !is_right;
}

static void fault(void) { *(volatile char *)16 = 1; }
static void sent(void) { kill(getpid(), SIGSEGV); }
static void ignored(void) { signal(SIGSEGV, SIG_IGN); }
static void handled(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	MUST(!sigaction(SIGSEGV, &action, NULL));
}
static void handled_then_fault(void) { handled(); fault(); }

int main(void)
{
	int wrong = own("a fault ends it", NULL, fault, 0, SIGSEGV) + own("a signal ends it", NULL, sent, 0, SIGSEGV) +
		own("a signal that is ignored", ignored, sent, 0, 0) + own("an ignored fault ends it", ignored, fault, 0, SIGSEGV) +
		own("an earlier handler", handled, fault, 7, 0) + own("a later handler", NULL, handled_then_fault, 7, 0) +
		own("pages that are watched", tracked, tracks, 7, 0);
	begin();
	for (int how = UNMAPPED; how <= PROTECTED; how++)
		for (int role = TARGET; role <= RECEIVE; role++)
			wrong += gone(how, role, 8) + gone(how, role, 20000);
	wrong += together();
	printf("%d wrong\n", wrong);
	return wrong;
}
