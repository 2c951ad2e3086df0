/* A connection whose client does not say that it is ready: its server learns by other means that packets come, says so by
 * rdma_notify, and the connection is established. */
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)
#define FAILS(call, why) do { errno = 0; MUST((call) == -1 && errno == (why)); } while (0)

/* The next event, which has to be this; gives whose it is. */
static struct rdma_cm_id *next(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	MUST(!rdma_get_cm_event(channel, &event));
	struct rdma_cm_id *id = event->id;
	if (event->event != type) {
		fprintf(stderr, "%s (%d), not %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
		exit(1);
	}
	rdma_ack_cm_event(event);
	return id;
}

int main(void)
{
	alarm(30); /* Whatever hangs. */
	struct rdma_event_channel *here = rdma_create_event_channel(), *there = rdma_create_event_channel();
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_conn_param with = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .qp_num = 0x1234};
	struct rdma_cm_id *listener, *client, *server;
	MUST(here && there && !rdma_create_id(here, &listener, NULL, RDMA_PS_TCP) && !rdma_create_id(there, &client, NULL, RDMA_PS_TCP));
	MUST(!rdma_bind_addr(listener, (struct sockaddr *)&address) && !rdma_listen(listener, 1));
	address.sin_port = rdma_get_src_port(listener);
	MUST(!rdma_resolve_addr(client, NULL, (struct sockaddr *)&address, 2000));
	MUST(next(there, RDMA_CM_EVENT_ADDR_RESOLVED) == client && !rdma_resolve_route(client, 2000));
	MUST(next(there, RDMA_CM_EVENT_ROUTE_RESOLVED) == client && !rdma_connect(client, &with));
	MUST(server = next(here, RDMA_CM_EVENT_CONNECT_REQUEST));
	FAILS(rdma_notify(server, IBV_EVENT_COMM_EST), EINVAL);
	with.qp_num = 0x4321;
	MUST(!rdma_accept(server, &with));
	MUST(next(there, RDMA_CM_EVENT_CONNECT_RESPONSE) == client); /* Without a queue pair it is ready when it says so. */

	FAILS(rdma_notify(listener, IBV_EVENT_COMM_EST), EINVAL);
	FAILS(rdma_notify(server, IBV_EVENT_QP_FATAL), EINVAL);
	MUST(!rdma_notify(server, IBV_EVENT_COMM_EST));
	MUST(next(here, RDMA_CM_EVENT_ESTABLISHED) == server);
	FAILS(rdma_notify(server, IBV_EVENT_COMM_EST), EISCONN);

	MUST(!rdma_establish(client) && !rdma_disconnect(client)); /* That it is ready is no news. */
	MUST(next(here, RDMA_CM_EVENT_DISCONNECTED) == server);
	MUST(!rdma_destroy_id(server) && !rdma_destroy_id(client) && !rdma_destroy_id(listener));
	return 0;
}
