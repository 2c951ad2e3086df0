/* Two processes on UCX that meet by its listener: `listener server PORT` and `listener client ADDRESS PORT`.
 *
 * With UCX_SOCKADDR_TLS_PRIORITY=rdmacm the endpoints are made by rdma_cm. The client sends messages of several lengths by
 * tags, and the server sends each back; the client checks every byte, and says how many there were. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

static const size_t LENGTHS[] = {1, 64, 4096, 65536, 1 << 20};
enum { COUNT = sizeof LENGTHS / sizeof *LENGTHS, LONGEST = 1 << 20, TAG = 7 };

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h endpoint;
static int broken;

static void must(ucs_status_t status, const char *what)
{
    if (status != UCS_OK) {
        fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
        exit(1);
    }
}

static void on_broken(void *argument, ucp_ep_h of, ucs_status_t status)
{
    (void)argument, (void)of, (void)status;
    broken = 1;
}

static void connect_to(ucp_conn_request_h request, const struct sockaddr_in *address)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_FLAGS,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler.cb = on_broken,
    };
    if (request) {
        params.field_mask |= UCP_EP_PARAM_FIELD_CONN_REQUEST;
        params.conn_request = request;
    } else {
        params.field_mask |= UCP_EP_PARAM_FIELD_SOCK_ADDR;
        params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
        params.sockaddr.addr = (const struct sockaddr *)address;
        params.sockaddr.addrlen = sizeof *address;
    }
    must(ucp_ep_create(worker, &params, &endpoint), "an endpoint");
}

static void on_request(ucp_conn_request_h request, void *argument)
{
    (void)argument;
    connect_to(request, NULL);
}

/* Waits for the end of a request. */
static void finish(void *request, const char *what)
{
    if (request == NULL)
        return;
    if (UCS_PTR_IS_ERR(request))
        must(UCS_PTR_STATUS(request), what);
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
        ucp_worker_progress(worker);
    ucp_request_free(request);
    must(status, what);
}

static void send_tag(const void *bytes, size_t len)
{
    ucp_request_param_t param = {0};
    finish(ucp_tag_send_nbx(endpoint, bytes, len, TAG, &param), "a message out");
}

static void receive_tag(void *bytes, size_t len)
{
    ucp_request_param_t param = {0};
    finish(ucp_tag_recv_nbx(worker, bytes, len, TAG, UINT64_MAX, &param), "a message in");
}

static void end(void)
{
    ucp_request_param_t param = {0};
    finish(ucp_ep_close_nbx(endpoint, &param), "the end");
}

static void serve(struct sockaddr_in *address)
{
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(const struct sockaddr *)address, sizeof *address},
        .conn_handler.cb = on_request,
    };
    ucp_listener_h listener;
    must(ucp_listener_create(worker, &params, &listener), "a listener");
    while (!endpoint)
        ucp_worker_progress(worker);
    char *bytes = malloc(LONGEST);
    for (int at = 0; at < COUNT; at++) {
        receive_tag(bytes, LENGTHS[at]);
        send_tag(bytes, LENGTHS[at]);
    }
    while (!broken) /* The client ends first. */
        ucp_worker_progress(worker);
    ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    finish(ucp_ep_close_nbx(endpoint, &force), "the end");
    ucp_listener_destroy(listener);
}

static void ask(const struct sockaddr_in *address)
{
    connect_to(NULL, address);
    char *out = malloc(LONGEST), *in = malloc(LONGEST);
    for (int at = 0; at < COUNT; at++) {
        for (size_t i = 0; i < LENGTHS[at]; i++)
            out[i] = (char)(i * 31 + at);
        memset(in, 0, LENGTHS[at]);
        send_tag(out, LENGTHS[at]);
        receive_tag(in, LENGTHS[at]);
        if (memcmp(in, out, LENGTHS[at]) != 0)
            must(UCS_ERR_IO_ERROR, "the bytes of a message");
    }
    end();
    printf("%d messages came back\n", COUNT);
}

int main(int argc, char **argv)
{
    int serves = argc == 3 && strcmp(argv[1], "server") == 0;
    if (!serves && argc != 4)
        return 2;
    alarm(50);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1]))};
    if (!serves)
        inet_pton(AF_INET, argv[2], &address.sin_addr);
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    must(ucp_init(&params, NULL, &context), "UCX");
    ucp_worker_params_t single = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    must(ucp_worker_create(context, &single, &worker), "a worker");
    serves ? serve(&address) : ask(&address);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return 0;
}
