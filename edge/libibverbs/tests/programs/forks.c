/* A process that has a device open forks a server and a client, which open devices of their own and meet by the
 * connection manager, while the parent lets go of its own. In every other round the server refuses, and ends at once. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "round %d, %s, %d: %s: %s\n", round_no, who, __LINE__, #what, strerror(errno)); _exit(1); } } while (0)
#define ROUNDS 16
#define PORT "7493"

static int round_no;
static const char *who = "parent";
static char bytes[64];

static struct rdma_cm_id *endpoint(int passive)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = passive ? RAI_PASSIVE : 0}, *found;
	struct ibv_qp_init_attr attr = {
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64},
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;
	MUST(!rdma_getaddrinfo("127.0.0.1", PORT, &hints, &found));
	MUST(!rdma_create_ep(&id, found, NULL, &attr));
	rdma_freeaddrinfo(found);
	return id;
}

static void server(int ready, int done)
{
	struct rdma_cm_id *listener = endpoint(1), *id;
	struct ibv_wc wc;
	who = "server";
	MUST(!rdma_listen(listener, 4));
	MUST(write(ready, "x", 1) == 1);
	MUST(!rdma_get_request(listener, &id));
	if (round_no % 2) {
		MUST(!rdma_reject(id, "busy", 4));
		_exit(0);
	}
	struct ibv_mr *mr = rdma_reg_msgs(id, bytes, sizeof bytes);
	MUST(mr && !rdma_post_recv(id, NULL, bytes, sizeof bytes, mr));
	MUST(!rdma_accept(id, NULL));
	MUST(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	MUST(!strcmp(bytes, "hello") && read(done, bytes, 1) == 1);
	_exit(0);
}

static void client(int ready, int done)
{
	struct ibv_wc wc;
	char c;
	who = "client";
	MUST(read(ready, &c, 1) == 1);
	struct rdma_cm_id *id = endpoint(0);
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
	if (round_no % 2) {
		MUST(rdma_connect(id, &param) && errno == ECONNREFUSED);
		MUST(!memcmp(id->event->param.conn.private_data, "busy", 4));
		_exit(0);
	}
	MUST(!rdma_connect(id, &param));
	strcpy(bytes, "hello");
	MUST(!rdma_post_send(id, NULL, bytes, 6, NULL, IBV_SEND_INLINE));
	MUST(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	MUST(write(done, "x", 1) == 1);
	_exit(0);
}

/* A queue pair that is ready to receive, so that the address is open. */
static struct ibv_context *device(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	MUST(list && count > 0);
	struct ibv_context *context = ibv_open_device(list[0]);
	MUST(context);
	ibv_free_device_list(list);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	MUST(pd && cq);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	MUST(qp);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}},
	};
	MUST(!ibv_query_gid(context, 1, 1, &rtr.ah_attr.grh.dgid));
	MUST(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	MUST(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
	return context;
}

int main(void)
{
	for (round_no = 0; round_no < ROUNDS; round_no++) {
		struct ibv_context *own = device();
		int ready[2], done[2], status;
		MUST(!pipe(ready) && !pipe(done));
		if (!fork())
			server(ready[1], done[0]);
		if (!fork())
			client(ready[0], done[1]);
		if (round_no % 4 < 2)
			MUST(!ibv_close_device(own));
		alarm(60); /* Whatever becomes of one of them. */
		for (int child = 0; child < 2; child++)
			MUST(wait(&status) > 0 && WIFEXITED(status) && !WEXITSTATUS(status));
		if (round_no % 4 >= 2)
			MUST(!ibv_close_device(own));
		close(ready[0]);
		close(ready[1]);
		close(done[0]);
		close(done[1]);
	}
	return 0;
}
