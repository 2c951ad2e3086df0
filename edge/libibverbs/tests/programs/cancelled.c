/* Threads that are cancelled: one that waits for an event ends there, and one that is cancelled already ends after any other
 * call, which does what it does; the program goes on. A signal that all threads of the program hold back is taken by none of the
 * library's. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static union ibv_gid gid;
static char memory[1 << 16];

#define MUST(what) do { if (!(what)) { printf("%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(99); } } while (0)

static void *await_completion(void *argument)
{
	struct ibv_cq *of;
	(void)argument;
	ibv_get_cq_event(channel, &of, &argument);
	return NULL;
}

static void *await_event(void *argument)
{
	struct ibv_async_event event;
	ibv_get_async_event(context, &event);
	return argument;
}

static void *await_connection(void *argument)
{
	struct rdma_cm_event *event;
	rdma_get_cm_event(argument, &event);
	return NULL;
}

static void ends_where_it_waits(void *(*await)(void *), void *argument, int pause_us)
{
	pthread_t thread;
	void *result;
	MUST(!pthread_create(&thread, NULL, await, argument));
	usleep(pause_us);
	MUST(!pthread_cancel(thread) && !pthread_join(thread, &result));
	MUST(result == PTHREAD_CANCELED);
}

/* A message that a queue pair sends to itself. */
static void exchange(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	MUST(qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1 } } };
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
	struct ibv_sge piece = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &piece, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	MUST(!ibv_req_notify_cq(cq, 0) && !ibv_post_recv(qp, &recv, &bad_recv) && !ibv_post_send(qp, &send, &bad));
	struct ibv_wc wc;
	for (int found = 0; found < 2;) {
		int more = ibv_poll_cq(cq, 1, &wc);
		MUST(more >= 0 && (!more || wc.status == IBV_WC_SUCCESS));
		found += more;
	}
	MUST(!ibv_destroy_qp(qp));
}

/* What a thread does between two messages, and at its start. */
static void *makes_and_ends(void *done)
{
	pthread_cancel(pthread_self());
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list);
	struct ibv_context *other = ibv_open_device(*list);
	MUST(other);
	ibv_free_device_list(list);
	struct ibv_port_attr port;
	MUST(!ibv_query_port(other, 1, &port));
	struct ibv_mr *region = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_comp_channel *own = ibv_create_comp_channel(other);
	struct ibv_cq *queue = ibv_create_cq(other, 4, NULL, own, 0);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	MUST(region && own && queue && srq);
	exchange();
	MUST(!ibv_destroy_srq(srq) && !ibv_destroy_cq(queue) && !ibv_destroy_comp_channel(own) && !ibv_dereg_mr(region));
	MUST(!ibv_close_device(other));
	*(int *)done = 1;
	pthread_testcancel();
	return NULL;
}

/* Descriptors are how such programs take signals. */
static void takes_its_own_signals(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	MUST(!pthread_sigmask(SIG_BLOCK, &set, NULL));
	struct pollfd file = { .fd = signalfd(-1, &set, 0), .events = POLLIN };
	MUST(file.fd >= 0 && !kill(getpid(), SIGTERM) && poll(&file, 1, 10000) == 1);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list && (context = ibv_open_device(*list)) && (pd = ibv_alloc_pd(context)));
	ibv_free_device_list(list);
	MUST((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)) && !ibv_query_gid(context, 1, 1, &gid));
	MUST((channel = ibv_create_comp_channel(context)) && (cq = ibv_create_cq(context, 16, NULL, channel, 0)));
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	MUST(events && !rdma_create_id(events, &id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(id, (struct sockaddr *)&address) &&
		!rdma_listen(id, 4));
	for (int pause_us = 1000; pause_us <= 300000; pause_us *= 300) {
		ends_where_it_waits(await_completion, NULL, pause_us);
		ends_where_it_waits(await_event, NULL, pause_us);
		ends_where_it_waits(await_connection, events, pause_us);
	}
	int done = 0;
	ends_where_it_waits(makes_and_ends, &done, 0);
	MUST(done);
	/* The event of the messages is there, after threads that have waited for one. */
	struct ibv_cq *of;
	void *cq_context;
	MUST(!ibv_get_cq_event(channel, &of, &cq_context) && of == cq);
	ibv_ack_cq_events(cq, 1);
	exchange();
	takes_its_own_signals();
	rdma_destroy_id(id);
	rdma_destroy_event_channel(events);
	MUST(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
	MUST(!ibv_close_device(context));
	return 0;
}
