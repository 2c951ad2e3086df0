/* Loads libibverbs as NCCL does: by dlopen, and each function by dlvsym. Prints the devices, and has one, the first or that of
 * a name that is given, write a message into its own memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#undef ibv_query_port
#undef ibv_reg_mr

/* The functions of the library that are called. */
#define CALLED(call) \
	call(struct ibv_device **, ibv_get_device_list, (int *)) \
	call(void, ibv_free_device_list, (struct ibv_device **)) \
	call(const char *, ibv_get_device_name, (struct ibv_device *)) \
	call(struct ibv_context *, ibv_open_device, (struct ibv_device *)) \
	call(int, ibv_close_device, (struct ibv_context *)) \
	call(int, ibv_query_device, (struct ibv_context *, struct ibv_device_attr *)) \
	call(int, ibv_query_port, (struct ibv_context *, uint8_t, struct ibv_port_attr *)) \
	call(int, ibv_query_gid, (struct ibv_context *, uint8_t, int, union ibv_gid *)) \
	call(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *)) \
	call(int, ibv_dealloc_pd, (struct ibv_pd *)) \
	call(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *, void *, size_t, int)) \
	call(int, ibv_dereg_mr, (struct ibv_mr *)) \
	call(struct ibv_cq *, ibv_create_cq, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
	call(int, ibv_destroy_cq, (struct ibv_cq *)) \
	call(struct ibv_qp *, ibv_create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *)) \
	call(int, ibv_modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int)) \
	call(int, ibv_query_qp, (struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *)) \
	call(int, ibv_destroy_qp, (struct ibv_qp *)) \
	call(int, ibv_fork_init, (void)) \
	call(const char *, ibv_event_type_str, (enum ibv_event_type))

#define POINTER(result, name, arguments) static result (*the_##name) arguments;
CALLED(POINTER)

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s\n", __LINE__, #what); exit(1); } } while (0)

/* Functions that NCCL looks for, too, and that are not called here. */
static const struct { const char *name, *version; } others[] = {
	{"ibv_get_async_event", "IBVERBS_1.1"}, {"ibv_ack_async_event", "IBVERBS_1.1"}, {"ibv_reg_mr_iova2", "IBVERBS_1.8"},
	{"ibv_query_ece", "IBVERBS_1.10"}, {"ibv_set_ece", "IBVERBS_1.10"}, {"ibv_reg_dmabuf_mr", "IBVERBS_1.12"},
};

static void *library;

static void load(void)
{
	library = dlopen("libibverbs.so", RTLD_NOW); /* A name that the package of the headers brings. */
	if (!library)
		library = dlopen("libibverbs.so.1", RTLD_NOW);
	MUST(library);
#define LOAD(result, name, arguments) \
	MUST(dlsym(library, #name)); \
	MUST((the_##name = dlvsym(library, #name, "IBVERBS_1.1")));
	CALLED(LOAD)
	for (unsigned i = 0; i < sizeof(others) / sizeof(*others); i++)
		if (!dlvsym(library, others[i].name, others[i].version)) {
			printf("missing %s\n", others[i].name);
			exit(3);
		}
}

/* Connects a queue pair to itself. */
static void connect_to_itself(struct ibv_qp *qp, union ibv_gid gid)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}},
		.timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};
	MUST(!the_ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	MUST(!the_ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	MUST(!the_ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
		| IBV_QP_MAX_QP_RD_ATOMIC));
}

static void write_to_itself(struct ibv_device *device)
{
	static char memory[2][4096];
	struct ibv_context *context = the_ibv_open_device(device);
	struct ibv_device_attr about;
	struct ibv_port_attr port;
	union ibv_gid gid;
	MUST(context);
	MUST(!the_ibv_query_device(context, &about) && about.phys_port_cnt == 1);
	MUST(!the_ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE);
	MUST(!the_ibv_query_gid(context, 1, 0, &gid));
	struct ibv_pd *pd = the_ibv_alloc_pd(context);
	struct ibv_mr *mr = the_ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_cq *cq = the_ibv_create_cq(context, 16, NULL, NULL, 0);
	MUST(pd && mr && cq);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp *qp = the_ibv_create_qp(pd, &init);
	MUST(qp);
	connect_to_itself(qp, gid);
	struct ibv_qp_attr attr;
	MUST(!the_ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_RTS);

	memset(memory[0], 'x', sizeof memory[0]);
	struct ibv_sge piece = {(uintptr_t)memory[0], sizeof memory[0], mr->lkey};
	struct ibv_send_wr request = {
		.wr_id = 7, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {(uintptr_t)memory[1], mr->rkey},
	}, *bad;
	MUST(!ibv_post_send(qp, &request, &bad)); /* By the context's table, as `ibv_poll_cq`. */
	struct ibv_wc done;
	int count = 0;
	for (time_t end = time(NULL) + 10; !count && time(NULL) < end;)
		count = ibv_poll_cq(cq, 1, &done);
	MUST(count == 1 && done.status == IBV_WC_SUCCESS && done.wr_id == 7);
	MUST(!memcmp(memory[0], memory[1], sizeof memory[0]));
	MUST(!the_ibv_destroy_qp(qp) && !the_ibv_destroy_cq(cq) && !the_ibv_dereg_mr(mr) && !the_ibv_dealloc_pd(pd));
	MUST(!the_ibv_close_device(context));
}

int main(int count, char **words)
{
	load();
	MUST(!the_ibv_fork_init());
	MUST(the_ibv_event_type_str(IBV_EVENT_PORT_ACTIVE));
	struct ibv_device **devices = the_ibv_get_device_list(NULL), *used = NULL;
	MUST(devices);
	for (struct ibv_device **device = devices; *device; device++) {
		const char *name = the_ibv_get_device_name(*device);
		printf("%s\n", name);
		if (!used || (count > 1 && !strcmp(words[1], name)))
			used = *device;
	}
	MUST(used);
	write_to_itself(used);
	puts("written");
	the_ibv_free_device_list(devices);
	return 0;
}
