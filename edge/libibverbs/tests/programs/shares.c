/* Three processes and targets of one XRC domain: MAKER makes them, OPENER opens them by number, and SENDER sends through them. A
 * target is the same for both that have it open: either connects it, both hear of its events, and it ends with the last of them.
 * Processes that are killed: an opener lets go of its targets; with their maker, targets fail. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *role;
#define MUST(what) do { if (!(what)) { fprintf(stderr, "%s: %d: %s: %s\n", role, __LINE__, #what, strerror(errno)); exit(1); } } while (0)
#define FAILS(call, why) do { errno = 0; MUST(!(call) && errno == (why)); } while (0)

static char bytes[64];
static union ibv_gid gid;
static struct ibv_context *context;
static struct ibv_xrcd *xrcd, *other;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_srq *srq;
static int file, line;

static void tell(uint32_t what)
{
	MUST(send(line, &what, sizeof what, MSG_NOSIGNAL) == sizeof what);
}

static uint32_t told(void)
{
	uint32_t what;
	if (recv(line, &what, sizeof what, 0) != sizeof what)
		exit(1); /* The others have failed, and said so. */
	return what;
}

static struct ibv_xrcd *domain(int fd)
{
	struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = O_CREAT};
	struct ibv_xrcd *made = ibv_open_xrcd(context, &attr);
	MUST(made);
	return made;
}

static void begin(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(context = ibv_open_device(*list));
	ibv_free_device_list(list);
	MUST(!ibv_query_gid(context, 1, 1, &gid));
	xrcd = domain(file);
	other = domain(-1);
	MUST(pd = ibv_alloc_pd(context));
	MUST(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	MUST(mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_srq_init_attr_ex attr = {.attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .xrcd = xrcd, .cq = cq,
		.pd = pd, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD};
	MUST(srq = ibv_create_srq_ex(context, &attr));
}

static struct ibv_qp *made(void)
{
	struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	MUST(qp);
	return qp;
}

static struct ibv_qp *opened(struct ibv_xrcd *in, uint32_t number, enum ibv_qp_type type)
{
	struct ibv_qp_open_attr attr = {.qp_num = number, .xrcd = in, .qp_type = type, .qp_context = &gid,
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT};
	return ibv_open_qp(context, &attr);
}

static void ready(struct ibv_qp *qp, uint32_t peer, int sends)
{
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .min_rnr_timer = 12,
		.rq_psn = 0xfffffe, .max_dest_rd_atomic = 3,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 64}}};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	if (!sends)
		return;
	to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 0xfffffe};
	MUST(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

static int state(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	MUST(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && init.qp_type == IBV_QPT_XRC_RECV);
	if (attr.qp_state == IBV_QPS_RTR)
		MUST(attr.dest_qp_num == peer && attr.path_mtu == IBV_MTU_1024 && attr.rq_psn == 0xfffffe && attr.min_rnr_timer == 12 &&
			attr.max_dest_rd_atomic == 3 && attr.port_num == 1 && !memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof gid));
	return attr.qp_state;
}

static void event(struct ibv_qp *of, enum ibv_event_type type)
{
	struct ibv_async_event event;
	MUST(!ibv_get_async_event(context, &event));
	MUST(event.event_type == type && event.element.qp == of);
	ibv_ack_async_event(&event);
}

static void receive(uint32_t number)
{
	struct ibv_sge piece = {(uintptr_t)bytes, 32, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &piece, .num_sge = 1}, *no;
	struct ibv_wc wc;
	uint32_t queue;
	memset(bytes, 0, sizeof bytes);
	MUST(!ibv_post_srq_recv(srq, &wr, &no) && !ibv_get_srq_num(srq, &queue));
	tell(queue);
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	MUST(wc.status == IBV_WC_SUCCESS && wc.qp_num == number && !strcmp(bytes, "through a target"));
}

static enum ibv_wc_status sent(struct ibv_qp *from, uint32_t queue)
{
	struct ibv_sge piece = {(uintptr_t)bytes, 32, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc;
	strcpy(bytes, "through a target");
	wr.qp_type.xrc.remote_srqn = queue;
	MUST(!ibv_post_send(from, &wr, &bad));
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	return wc.status;
}

static struct ibv_qp *initiator(void)
{
	struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .cap = {.max_send_wr = 4, .max_send_sge = 1},
		.pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	MUST(qp);
	return qp;
}

/* Targets of the maker: one that it destroys first, one that its opener is killed with, one that it is killed with. */
static void maker(void)
{
	struct ibv_qp *first = made(), *second = made(), *third = made();
	tell(first->qp_num), tell(second->qp_num), tell(third->qp_num);
	uint32_t peer = told();
	MUST(state(first, peer) == IBV_QPS_RTR); /* The opener has connected it. */
	receive(first->qp_num);
	event(first, IBV_EVENT_COMM_EST);
	uint32_t number = first->qp_num;
	MUST(!ibv_destroy_qp(first));
	tell(0);
	told(); /* The opener has destroyed it, too. */
	for (struct ibv_qp *again; (again = opened(xrcd, number, IBV_QPT_XRC_RECV));)
		MUST(!ibv_destroy_qp(again) && !usleep(1000));
	MUST(errno == EINVAL);

	number = second->qp_num;
	MUST(!ibv_destroy_qp(second));
	tell(0);
	told(); /* The opener is dead. */
	for (struct ibv_qp *again; (again = opened(xrcd, number, IBV_QPT_XRC_RECV));)
		MUST(!ibv_destroy_qp(again) && !usleep(1000));
	tell(0);
	pause();
}

static void opener(void)
{
	uint32_t number = told(), second = told(), peer = told();
	FAILS(opened(xrcd, number ^ 0x400000, IBV_QPT_XRC_RECV), EINVAL);
	FAILS(opened(xrcd, number, IBV_QPT_RC), EINVAL);
	FAILS(opened(other, number, IBV_QPT_XRC_RECV), EINVAL);
	struct ibv_qp *qp = opened(xrcd, number, IBV_QPT_XRC_RECV);
	MUST(qp && qp->qp_num == number && qp->qp_context == &gid && qp->state == IBV_QPS_RESET && ibv_close_xrcd(xrcd) == EBUSY);
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_RTR};
	MUST(ibv_modify_qp(qp, &to, IBV_QP_STATE) == EINVAL && state(qp, 0) == IBV_QPS_RESET);
	ready(qp, peer, 0);
	MUST(qp->state == IBV_QPS_RTR && state(qp, peer) == IBV_QPS_RTR);
	tell(0);
	receive(number);
	event(qp, IBV_EVENT_COMM_EST);
	tell(0);
	told(); /* The maker has destroyed it. */
	MUST(state(qp, peer) == IBV_QPS_RTR);
	receive(number);
	MUST(opened(xrcd, second, IBV_QPT_XRC_RECV));
	MUST(!ibv_destroy_qp(qp));
	tell(0);
	pause();
}

static void survivor(void)
{
	struct ibv_qp *qp = opened(xrcd, told(), IBV_QPT_XRC_RECV);
	MUST(qp && state(qp, 0) == IBV_QPS_RESET);
	tell(0);
	event(qp, IBV_EVENT_QP_FATAL);
	MUST(state(qp, 0) == IBV_QPS_ERR);
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT};
	MUST(ibv_modify_qp(qp, &to, IBV_QP_STATE) == EIO);
	MUST(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq) && !ibv_close_xrcd(xrcd));
	tell(0);
}

static pid_t start(const char *name, void (*run)(void), int *end)
{
	int pair[2];
	MUST(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	pid_t pid = fork();
	MUST(pid >= 0);
	if (!pid) {
		role = name;
		line = pair[1];
		close(pair[0]);
		alarm(60);
		begin();
		run();
		exit(0);
	}
	close(pair[1]);
	*end = pair[0];
	return pid;
}

#define TO(end, what) (line = (end), tell(what))
#define FROM(end) (line = (end), told())

int main(void)
{
	role = "sender";
	alarm(60); /* Whatever hangs. */
	file = fileno(tmpfile());
	int a, b, c;
	pid_t one = start("maker", maker, &a), two = start("opener", opener, &b), three = start("survivor", survivor, &c);
	begin();
	struct ibv_qp *qp = initiator();
	uint32_t first = FROM(a), second = FROM(a), third = FROM(a);
	TO(b, first), TO(b, second), TO(b, qp->qp_num);
	TO(c, third), FROM(c);
	FROM(b); /* Connected. */
	ready(qp, first, 1);
	MUST(sent(qp, FROM(b)) == IBV_WC_SUCCESS);
	FROM(b); /* It has heard of the connection. */
	TO(a, qp->qp_num);
	MUST(sent(qp, FROM(a)) == IBV_WC_SUCCESS);
	FROM(a); /* Destroyed there. */
	TO(b, 0);
	uint32_t queue = FROM(b);
	MUST(sent(qp, queue) == IBV_WC_SUCCESS);
	FROM(b); /* Destroyed there, too. */
	TO(a, 0), FROM(a);
	MUST(sent(qp, queue) == IBV_WC_RETRY_EXC_ERR);

	MUST(!kill(two, SIGKILL) && waitpid(two, NULL, 0) == two);
	TO(a, 0), FROM(a);
	MUST(!kill(one, SIGKILL) && waitpid(one, NULL, 0) == one);
	FROM(c);
	int status;
	MUST(waitpid(three, &status, 0) == three && !status);
	return 0;
}
