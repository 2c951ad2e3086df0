/* A device that stays open while addresses of its interface come and go, which its files show, too. It is told by lines what to do, and answers each
 * with one: the test changes the addresses between them. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)
/* Looks again for a while, for changes are heard of a little later. */
#define COMES_TRUE(what) do { int looks_ = 5000; while (!(what)) { MUST(looks_-- && "" #what); usleep(1000); } } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char memory[64];
static int places;

static union ibv_gid gid_of(const char *address)
{
	union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};
	MUST(inet_pton(AF_INET, address, gid.raw + 12) == 1);
	return gid;
}

/* Its place; -1 if it has none. */
static int place_of(union ibv_gid want)
{
	for (int place = 0; place < places; place++) {
		union ibv_gid gid;
		MUST(!ibv_query_gid(context, 1, place, &gid));
		if (!memcmp(&gid, &want, sizeof gid))
			return place;
	}
	return -1;
}

static int is_listed(struct ibv_context *in, union ibv_gid gid, int place)
{
	struct ibv_gid_entry all[256];
	ssize_t count = ibv_query_gid_table(in, all, 256, 0);
	MUST(count >= 0);
	for (ssize_t at = 0; at < count; at++)
		if (!memcmp(&all[at].gid, &gid, sizeof gid) || (int)all[at].gid_index == place)
			return 1;
	return 0;
}

/* What is in the file of a place, without the end of the line; 0 if there is no such file. */
static int shows(const char *directory, int place, char *text, int size)
{
	char path[256];
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/%s/%d", ibv_get_device_name(context->device), directory, place);
	FILE *file = fopen(path, "r");
	if (!file) {
		MUST(errno == ENOENT);
		return 0;
	}
	MUST(fgets(text, size, file) && !fclose(file));
	text[strcspn(text, "\n")] = 0;
	return 1;
}

static void is_shown(union ibv_gid gid, int place)
{
	char text[64], want[64], *end = want;
	for (int at = 0; at < 16; at += 2)
		end += sprintf(end, "%s%02x%02x", at ? ":" : "", gid.raw[at], gid.raw[at + 1]);
	MUST(shows("gids", place, text, sizeof text) && !strcmp(text, want));
	MUST(shows("gid_attrs/types", place, text, sizeof text) && !strcmp(text, "RoCE v2"));
	MUST(shows("gid_attrs/ndevs", place, text, sizeof text) && !strcmp(text, "eth0"));
}

static void came(const char *address)
{
	union ibv_gid gid = gid_of(address);
	COMES_TRUE(place_of(gid) >= 0);
	int place = place_of(gid);
	struct ibv_gid_entry entry;
	MUST(!ibv_query_gid_ex(context, 1, place, &entry, 0));
	MUST(!memcmp(&entry.gid, &gid, sizeof gid) && (int)entry.gid_index == place && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
	MUST(is_listed(context, gid, place));
	is_shown(gid, place);
	struct ibv_context *second = ibv_open_device(context->device);
	MUST(second && is_listed(second, gid, place) && !ibv_close_device(second));
	printf("%d\n", place);
}

static void went(const char *address, int place)
{
	union ibv_gid gid = gid_of(address), none = {0};
	COMES_TRUE(place_of(gid) < 0);
	MUST(!ibv_query_gid(context, 1, place, &gid) && !memcmp(&gid, &none, sizeof gid));
	struct ibv_gid_entry entry;
	MUST(ibv_query_gid_ex(context, 1, place, &entry, 0) == ENODATA);
	MUST(!is_listed(context, gid_of(address), place));
	char text[64];
	MUST(!shows("gids", place, text, sizeof text) && !shows("gid_attrs/types", place, text, sizeof text));
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid_of(address), .sgid_index = place}};
	MUST(!ibv_create_ah(pd, &attr));
	struct ibv_port_attr port;
	MUST(!ibv_query_port(context, 1, &port) && port.gid_tbl_len == places);
	printf("gone\n");
}

static void make(void)
{
	struct ibv_qp_init_attr how = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
	MUST((qp = ibv_create_qp(pd, &how)));
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	MUST(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	printf("%u\n", qp->qp_num);
}

static void meet(const char *address, int place, unsigned number)
{
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = number, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 1, .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid_of(address), .sgid_index = place, .hop_limit = 64}}};
	MUST(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 3, .rnr_retry = 7, .max_rd_atomic = 1};
	MUST(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
		| IBV_QP_MAX_QP_RD_ATOMIC));
	struct ibv_ah *ah = ibv_create_ah(pd, &rtr.ah_attr);
	MUST(ah && !ibv_destroy_ah(ah));
	struct ibv_sge sge = {(uintptr_t)memory, sizeof memory, mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad;
	MUST(!ibv_post_recv(qp, &recv, &bad));
	printf("met\n");
}

static void completes(void)
{
	struct ibv_wc wc;
	COMES_TRUE(ibv_poll_cq(cq, 1, &wc) == 1);
	printf("%s\n", ibv_wc_status_str(wc.status));
}

static void sends(void)
{
	static char word[] = "hello";
	struct ibv_mr *from = ibv_reg_mr(pd, word, sizeof word, 0);
	MUST(from);
	struct ibv_sge sge = {(uintptr_t)word, sizeof word, from->lkey};
	struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	MUST(!ibv_post_send(qp, &send, &bad));
	completes();
	MUST(!ibv_dereg_mr(from));
}

int main(void)
{
	setlinebuf(stdout);
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && *list && (context = ibv_open_device(*list)));
	ibv_free_device_list(list);
	struct ibv_port_attr port;
	MUST(!ibv_query_port(context, 1, &port));
	places = port.gid_tbl_len;
	MUST((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	MUST((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
	printf("open\n");
	char line[256], what[16], address[64];
	while (fgets(line, sizeof line, stdin)) {
		int place = 0;
		unsigned number = 0;
		MUST(sscanf(line, "%15s %63s %d %u", what, address, &place, &number) >= 1);
		if (!strcmp(what, "came"))
			came(address);
		else if (!strcmp(what, "went"))
			went(address, place);
		else if (!strcmp(what, "make"))
			make();
		else if (!strcmp(what, "meet"))
			meet(address, place, number);
		else if (!strcmp(what, "send"))
			sends();
		else if (!strcmp(what, "recv"))
			completes();
		else if (!strcmp(what, "drop"))
			MUST(!ibv_destroy_qp(qp) && printf("dropped\n"));
		else
			MUST(!"a word that it knows");
	}
	MUST(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
