/* Waits for events that signals end: `ibv_get_cq_event` and `ibv_get_async_event` are `read` to a program, so a handler
 * without SA_RESTART ends them with EINTR, and one with SA_RESTART does not. Says how many waits of the first kind went on, of
 * how many. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 300 };

static pthread_t waiter;
static atomic_int begun, ended, handled, missed;
static struct ibv_context *context;
static struct ibv_comp_channel *channel;

static void must(int is, const char *what)
{
    if (!is) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void on_signal(int number)
{
    (void)number;
    atomic_fetch_add(&handled, 1);
}

static void handle(int flags)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    must(sigaction(SIGALRM, &action, NULL) == 0, "a handler");
}

static void pause_for(long ns)
{
    struct timespec end, now;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += ns;
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - end.tv_sec) * 1000000000L + (now.tv_nsec - end.tv_nsec) < 0);
}

/* One signal for each wait, while it looks for something to do or sleeps; if that does not end it, more of them. */
static void *signal_often(void *argument)
{
    (void)argument;
    for (int round = 1; round <= ROUNDS; round++) {
        while (atomic_load(&begun) < round)
            ;
        pause_for(500 + round * 37 % 8000);
        pthread_kill(waiter, SIGALRM);
        for (int more = 0; atomic_load(&ended) < round; more++) {
            usleep(1000);
            if (more > 0 && more % 200 == 0) {
                missed += more == 200;
                pthread_kill(waiter, SIGALRM);
            }
        }
    }
    return NULL;
}

/* Signals, and then an event. */
static void *signal_and_notify(void *argument)
{
    struct ibv_qp *qp = argument;
    for (int i = 0; i < 5; i++) {
        usleep(10000);
        pthread_kill(waiter, SIGALRM);
        while (atomic_load(&handled) <= i)
            usleep(100);
    }
    usleep(10000);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    must(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0, "the state that flushes");
    return NULL;
}

static int await_completion(void)
{
    struct ibv_cq *of;
    void *cq_context;
    return ibv_get_cq_event(channel, &of, &cq_context);
}

static int await_event(void)
{
    struct ibv_async_event event;
    return ibv_get_async_event(context, &event);
}

/* Waits of one kind, each ended by a signal. */
static void end_by_signals(int (*await)(void))
{
    pthread_t other;
    begun = ended = 0;
    pthread_create(&other, NULL, signal_often, NULL);
    for (int round = 1; round <= ROUNDS; round++) {
        atomic_store(&begun, round);
        must(await() == -1 && errno == EINTR, "a wait that is ended");
        atomic_store(&ended, round);
    }
    pthread_join(other, NULL);
}

int main(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    must(list && count > 0, "a device");
    must((context = ibv_open_device(list[0])) && (channel = ibv_create_comp_channel(context)), "a channel");
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0), *of;
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    must(cq && qp && ibv_req_notify_cq(cq, 0) == 0, "a queue pair");
    void *cq_context;
    pthread_t other;
    waiter = pthread_self();

    handle(0);
    end_by_signals(await_completion);
    end_by_signals(await_event);

    handle(SA_RESTART);
    atomic_store(&handled, 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "INIT");
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    must(ibv_post_recv(qp, &wr, &bad) == 0, "a receive");
    pthread_create(&other, NULL, signal_and_notify, qp);
    must(ibv_get_cq_event(channel, &of, &cq_context) == 0 && of == cq, "a wait that goes on");
    pthread_join(other, NULL);
    must(atomic_load(&handled) == 5, "signals that were handled meanwhile");
    ibv_ack_cq_events(cq, 1);
    printf("%d of %d\n", atomic_load(&missed), 2 * ROUNDS);
    return 0;
}
