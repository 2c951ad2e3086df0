/* The extra functions, asked for as the manual says; each step that fails has a status of its own. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct __attribute__((packed)) api {
	int (*register_recv_callback)(int, void *, void *);
	int (*recvfrom_zcopy)(void);
	int (*free_packets)(void);
	int (*add_conf_rule)(const char *);
	int (*thread_offload)(int, pthread_t);
	int (*socketxtreme_poll)(void);
	int (*get_socket_rings_num)(void);
	int (*get_socket_rings_fds)(void);
	int (*get_socket_tx_ring_fd)(void);
	int (*socketxtreme_free_packets)(void);
	int (*socketxtreme_ref_buff)(void);
	int (*socketxtreme_free_buff)(void);
	int (*dump_fd_stats)(int, int);
	int (*rest[6])(void);
	uint64_t mask;
	int (*ioctl)(void);
};

int main(void) {
	struct api *api = NULL;
	socklen_t len = sizeof api;
	if (getsockopt(-1, SOL_SOCKET, 2800, &api, &len) || !api) return 1;
	if ((api->mask & 0x38) != 0x38 || api->mask & (1u << 14)) return 2;
	if (api->rest[5]() != -1 || errno != EOPNOTSUPP || api->ioctl() != -1) return 4;
	if (api->add_conf_rule("use os tcp_server *:4999") != 0) return 5;
	if (api->add_conf_rule("use nothing at all") != -1 || errno != EINVAL) return 6;
	if (api->add_conf_rule(NULL) != -1) return 7;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(4999) };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int one = 1, ruled = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(ruled, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(ruled, (struct sockaddr *)&address, sizeof address) || listen(ruled, 1)) return 8;
	if (api->dump_fd_stats(ruled, 3) != 0) return 9;
	if (api->thread_offload(0, pthread_self()) != 0) return 10;
	int plain = socket(AF_INET, SOCK_STREAM, 0);
	if (api->dump_fd_stats(plain, 3) != -1) return 11; /* it is not known */
	if (api->thread_offload(1, pthread_self()) != 0) return 12;
	int known = socket(AF_INET, SOCK_STREAM, 0);
	if (api->dump_fd_stats(known, 3) != 0) return 13;
	if (api->thread_offload(7, pthread_self()) != -1 || errno != EINVAL) return 14;
	len = 2;
	if (getsockopt(-1, SOL_SOCKET, 2800, &api, &len) != -1) return 15;
	return 0;
}
