/* Opens a device, sends, and closes it, again and again: as soon as it is closed, no thread of it is left. */
#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)
#define ROUNDS 60

static char bytes[128];

static int threads(void)
{
	int count = 0;
	DIR *tasks = opendir("/proc/self/task");
	MUST(tasks);
	for (struct dirent *entry; (entry = readdir(tasks));)
		count += entry->d_name[0] != '.';
	closedir(tasks);
	return count;
}

/* A datagram to the queue pair itself, so that the helper of the device is at work. */
static void send(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr, union ibv_gid gid)
{
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	MUST(qp);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1};
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 1}};
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	MUST(ah);
	struct ibv_sge piece = {.addr = (uintptr_t)bytes, .length = sizeof bytes, .lkey = mr->lkey};
	struct ibv_recv_wr receive = {.sg_list = &piece, .num_sge = 1}, *bad_receive;
	MUST(!ibv_post_recv(qp, &receive, &bad_receive));
	struct ibv_sge out = {.addr = (uintptr_t)bytes, .length = 64, .lkey = mr->lkey};
	struct ibv_send_wr request = {.sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = 1}}, *bad;
	MUST(!ibv_post_send(qp, &request, &bad));
	struct ibv_wc wc;
	for (int done = 0; done < 2;) {
		int count = ibv_poll_cq(cq, 1, &wc);
		MUST(count >= 0 && (!count || wc.status == IBV_WC_SUCCESS));
		done += count;
	}
	MUST(!ibv_destroy_ah(ah) && !ibv_destroy_qp(qp));
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list);
	int before = threads();
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_context *context = ibv_open_device(*list);
		MUST(context);
		union ibv_gid gid;
		MUST(!ibv_query_gid(context, 1, 1, &gid));
		struct ibv_pd *pd = ibv_alloc_pd(context);
		struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
		MUST(pd && cq);
		struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
		MUST(mr);
		send(pd, cq, mr, gid);
		MUST(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
		if (threads() != before) {
			fprintf(stderr, "round %d: %d threads, and %d before\n", round, threads(), before);
			return 1;
		}
	}
	return 0;
}
