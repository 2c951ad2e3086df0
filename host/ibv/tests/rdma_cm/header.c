/* Commands and answers of rdma_cm as the kernel's header lays them out.
 *
 * `commands`: prints each command in hexadecimal, a line each. `answers`: reads one answer of each kind, one behind
 * the other, and prints fields of them. */
#include <arpa/inet.h>
#include <rdma/rdma_user_cm.h>
#include <stdio.h>
#include <string.h>

/* The kernel's header of a command and the structure behind it, as librdmacm has it. */
#define COMMAND(kind, number, room, ...)                                                                              \
    do {                                                                                                              \
        struct {                                                                                                      \
            struct rdma_ucm_cmd_hdr header;                                                                           \
            struct kind body;                                                                                         \
        } command = {.header = {number, sizeof(struct kind), room}};                                                     \
        struct kind body = {__VA_ARGS__};                                                                             \
        command.body = body;                                                                                          \
        print(#number, &command, sizeof command.header + sizeof command.body);                                        \
    } while (0)

static void print(const char *name, const void *bytes, size_t len)
{
    const unsigned char *byte = bytes;
    printf("%s ", name + strlen("RDMA_USER_CM_CMD_"));
    for (size_t i = 0; i < len; i++)
        printf("%02x", byte[i]);
    printf("\n");
}

static struct sockaddr_in6 v6(int port)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_scope_id = 3};
    inet_pton(AF_INET6, "fe80::1", &address.sin6_addr);
    return address;
}

static struct sockaddr_in v4(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, "10.1.2.3", &address.sin_addr);
    return address;
}

static struct sockaddr_in6 v4_in_6(int port)
{
    struct sockaddr_in6 address = {0};
    struct sockaddr_in own = v4(port);
    memcpy(&address, &own, sizeof own);
    return address;
}

static struct __kernel_sockaddr_storage stored(const void *address, size_t len)
{
    struct __kernel_sockaddr_storage storage = {0};
    memcpy(&storage, address, len);
    return storage;
}

static void commands(void)
{
    struct sockaddr_in6 in6 = v6(7);
    struct sockaddr_in in = v4(8);
    struct rdma_ucm_conn_param param = {1, 2, "abc", 3, 1, 4, 5, 1, 6, 7, 1};
    struct rdma_ucm_conn_param invalid = {0};

    COMMAND(rdma_ucm_create_id, RDMA_USER_CM_CMD_CREATE_ID, sizeof(struct rdma_ucm_create_id_resp), .uid = 11,
            .response = 12, .ps = RDMA_PS_TCP, .qp_type = 2);
    COMMAND(rdma_ucm_destroy_id, RDMA_USER_CM_CMD_DESTROY_ID, sizeof(struct rdma_ucm_destroy_id_resp),
            .response = 12, .id = 13);
    COMMAND(rdma_ucm_bind_ip, RDMA_USER_CM_CMD_BIND_IP, 0, .addr = in6, .id = 13);
    COMMAND(rdma_ucm_resolve_ip, RDMA_USER_CM_CMD_RESOLVE_IP, 0, .dst_addr = v4_in_6(8), .id = 13,
            .timeout_ms = 14);
    COMMAND(rdma_ucm_resolve_route, RDMA_USER_CM_CMD_RESOLVE_ROUTE, 0, .id = 13, .timeout_ms = 14);
    COMMAND(rdma_ucm_query, RDMA_USER_CM_CMD_QUERY_ROUTE, sizeof(struct rdma_ucm_query_route_resp), .response = 12,
            .id = 13);
    COMMAND(rdma_ucm_connect, RDMA_USER_CM_CMD_CONNECT, 0, .conn_param = param, .id = 13);
    COMMAND(rdma_ucm_listen, RDMA_USER_CM_CMD_LISTEN, 0, .id = 13, .backlog = 15);
    COMMAND(rdma_ucm_accept, RDMA_USER_CM_CMD_ACCEPT, 0, .uid = 11, .conn_param = invalid, .id = 13);
    COMMAND(rdma_ucm_accept, RDMA_USER_CM_CMD_ACCEPT, 0, .uid = 11, .conn_param = param, .id = 13);
    COMMAND(rdma_ucm_reject, RDMA_USER_CM_CMD_REJECT, 0, .id = 13, .private_data_len = 3, .reason = 28,
            .private_data = "xyz");
    COMMAND(rdma_ucm_disconnect, RDMA_USER_CM_CMD_DISCONNECT, 0, .id = 13);
    COMMAND(rdma_ucm_init_qp_attr, RDMA_USER_CM_CMD_INIT_QP_ATTR, sizeof(struct ib_uverbs_qp_attr), .response = 12,
            .id = 13, .qp_state = 2);
    COMMAND(rdma_ucm_get_event, RDMA_USER_CM_CMD_GET_EVENT, sizeof(struct rdma_ucm_event_resp), .response = 12);
    COMMAND(rdma_ucm_set_option, RDMA_USER_CM_CMD_SET_OPTION, 0, .optval = 16, .id = 13,
            .level = RDMA_OPTION_ID, .optname = RDMA_OPTION_ID_ACK_TIMEOUT, .optlen = 1);
    COMMAND(rdma_ucm_notify, RDMA_USER_CM_CMD_NOTIFY, 0, .id = 13, .event = 4);
    COMMAND(rdma_ucm_join_ip_mcast, RDMA_USER_CM_CMD_JOIN_IP_MCAST, sizeof(struct rdma_ucm_create_id_resp),
            .response = 12, .uid = 11, .addr = in6, .id = 13);
    COMMAND(rdma_ucm_destroy_id, RDMA_USER_CM_CMD_LEAVE_MCAST, sizeof(struct rdma_ucm_destroy_id_resp),
            .response = 12, .id = 13);
    COMMAND(rdma_ucm_migrate_id, RDMA_USER_CM_CMD_MIGRATE_ID, sizeof(struct rdma_ucm_migrate_resp), .response = 12,
            .id = 13, .fd = 17);
    COMMAND(rdma_ucm_query, RDMA_USER_CM_CMD_QUERY, sizeof(struct rdma_ucm_query_addr_resp), .response = 12,
            .id = 13, .option = RDMA_USER_CM_QUERY_ADDR);
    COMMAND(rdma_ucm_bind, RDMA_USER_CM_CMD_BIND, 0, .id = 13, .addr_size = sizeof in,
            .addr = stored(&in, sizeof in));
    COMMAND(rdma_ucm_resolve_addr, RDMA_USER_CM_CMD_RESOLVE_ADDR, 0, .id = 13, .timeout_ms = 14,
            .src_size = sizeof in6, .dst_size = sizeof in6, .src_addr = stored(&in6, sizeof in6),
            .dst_addr = stored(&in6, sizeof in6));
    COMMAND(rdma_ucm_join_mcast, RDMA_USER_CM_CMD_JOIN_MCAST, sizeof(struct rdma_ucm_create_id_resp),
            .response = 12, .uid = 11, .id = 13, .addr_size = sizeof in,
            .join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, .addr = stored(&in, sizeof in));
}

#define SAY(...) printf(__VA_ARGS__)
#define READ(kind)                                                                                                    \
    struct kind kind;                                                                                                 \
    if (fread(&kind, sizeof kind, 1, stdin) != 1)                                                                     \
        return 1;

static int answers(void)
{
    {
        READ(rdma_ucm_event_resp);
        struct rdma_ucm_event_resp *e = &rdma_ucm_event_resp;
        struct rdma_ucm_conn_param *c = &e->param.conn;
        SAY("%llu %u %u %d ", e->uid, e->id, e->event, (int)e->status);
        SAY("%u %u %s %u %u %u %u %u %u %u\n", c->qp_num, c->qkey, c->private_data, c->private_data_len, c->srq,
            c->responder_resources, c->initiator_depth, c->flow_control, c->retry_count, c->rnr_retry_count);
    }
    {
        READ(rdma_ucm_event_resp);
        struct rdma_ucm_ud_param *u = &rdma_ucm_event_resp.param.ud;
        SAY("%u %u %s %u %u ", u->qp_num, u->qkey, u->private_data, u->private_data_len, u->ah_attr.grh.dgid[15]);
        SAY("%u %u %u %u %u %u %u\n", u->ah_attr.grh.flow_label, u->ah_attr.grh.sgid_index, u->ah_attr.grh.hop_limit,
            u->ah_attr.grh.traffic_class, u->ah_attr.sl, u->ah_attr.is_global, u->ah_attr.port_num);
    }
    {
        READ(ib_uverbs_qp_attr);
        struct ib_uverbs_qp_attr *q = &ib_uverbs_qp_attr;
        SAY("%u %u %u %u %u %u %u ", q->qp_attr_mask, q->qp_state, q->path_mtu, q->qkey, q->rq_psn, q->sq_psn,
            q->dest_qp_num);
        SAY("%u %u %u %u %u ", q->qp_access_flags, q->ah_attr.grh.sgid_index, q->pkey_index, q->max_rd_atomic,
            q->max_dest_rd_atomic);
        SAY("%u %u %u %u %u\n", q->min_rnr_timer, q->port_num, q->timeout, q->retry_cnt, q->rnr_retry);
    }
    {
        READ(rdma_ucm_query_route_resp);
        struct rdma_ucm_query_route_resp *r = &rdma_ucm_query_route_resp;
        struct ib_user_path_rec *p = &r->ib_route[0];
        SAY("%llu %u %u %u ", r->node_guid, r->num_paths, r->port_num, r->ibdev_index);
        SAY("%u %u %u ", ntohs(r->src_addr.sin6_port), ntohs(r->dst_addr.sin6_port), r->dst_addr.sin6_scope_id);
        SAY("%u %u %u %u %u ", p->dgid[15], p->sgid[15], ntohl(p->flow_label), p->mtu, ntohs(p->pkey));
        SAY("%u %u %u %u %u\n", p->hop_limit, p->traffic_class, p->numb_path, p->rate, p->packet_life_time);
    }
    {
        READ(rdma_ucm_query_addr_resp);
        struct rdma_ucm_query_addr_resp *a = &rdma_ucm_query_addr_resp;
        struct sockaddr_in6 *to = (struct sockaddr_in6 *)&a->dst_addr;
        SAY("%llu %u %u %u %u ", a->node_guid, a->port_num, a->pkey, a->src_size, a->dst_size);
        SAY("%u %u\n", ntohs(to->sin6_port), a->ibdev_index);
    }
    {
        READ(rdma_ucm_query_path_resp);
        SAY("%u ", rdma_ucm_query_path_resp.num_paths);
        READ(ib_path_rec_data);
        /* A path record: words 2 to 9 are the GIDs. */
        struct ib_path_rec_data *d = &ib_path_rec_data;
        SAY("%u %08x %08x %08x %08x %08x %08x\n", d->flags, ntohl(d->path_rec[5]), ntohl(d->path_rec[9]),
            ntohl(d->path_rec[11]), ntohl(d->path_rec[12]), ntohl(d->path_rec[13]), ntohl(d->path_rec[14]));
    }
    return getchar() != EOF;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "answers") == 0)
        return answers();
    commands();
    return 0;
}
