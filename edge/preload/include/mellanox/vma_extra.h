/*
 * The extra functions of the library, for programs in C and C++: names, numbers and layouts are those of the
 * header of the same name that comes with VMA 9, so that programs built with either work with both.
 *
 * Ask for the functions with vma_get_api(), and look into vma_extra_supported_mask before you call one: a
 * function whose bit is not set answers -1 with errno EOPNOTSUPP. docs/sockets.md says what each does here.
 */
#ifndef VMA_EXTRA_H
#define VMA_EXTRA_H

#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>

/* Flags of recvfrom_zcopy(): do not copy, whatever comes (in); nothing was copied (out). */
#define MSG_VMA_ZCOPY_FORCE 0x01000000
#define MSG_VMA_ZCOPY 0x00040000

/* A flag of send() and its kin: everything is made ready, and nothing is sent (MSG_SYN). */
#define VMA_SND_FLAGS_DUMMY 0x400

/* Options of the level SOL_SOCKET. */
#define SO_VMA_GET_API 2800          /* getsockopt on -1: struct vma_api_t * */
#define SO_VMA_USER_DATA 2801        /* uint64_t, or void *: comes back in completions */
#define SO_VMA_RING_ALLOC_LOGIC 2810 /* struct vma_ring_alloc_logic_attr */
#define SO_VMA_RING_USER_MEMORY 2811 /* struct iovec */
#define SO_VMA_FLOW_TAG 2820         /* uint32_t */
#define SO_VMA_SHUTDOWN_RX 2821      /* int */

/* What ioctl() of the functions below is asked for by a control message. */
enum {
	CMSG_VMA_IOCTL_USER_ALLOC = 2900 /* struct vma_cmsg_ioctl_user_alloc_t */
};

/* Whose memory the program allocates: for what is sent, for what is received. */
enum {
	VMA_IOCTL_USER_ALLOC_FLAG_TX = (1 << 0),
	VMA_IOCTL_USER_ALLOC_FLAG_RX = (1 << 1)
};

typedef struct __attribute__((packed)) vma_cmsg_ioctl_user_alloc_t {
	uint8_t flags;
	void *(*memalloc)(size_t size);
	void (*memfree)(void *memory);
} vma_cmsg_ioctl_user_alloc_t;

/* What a receive callback decides. */
typedef enum {
	VMA_PACKET_DROP, /* forget the packet */
	VMA_PACKET_RECV, /* leave it to recv() and its kin */
	VMA_PACKET_HOLD  /* the program keeps it, until free_packets() */
} vma_recv_callback_retval_t;

/* Events of completions beside those of epoll. */
typedef enum {
	VMA_SOCKETXTREME_PACKET = (1ULL << 32),
	VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED = (1ULL << 33)
} vma_socketxtreme_events_t;

/* One piece of a packet. */
struct vma_buff_t {
	struct vma_buff_t *next;
	void *payload;
	uint16_t len;
};

/* A packet: its pieces, in order. */
struct vma_packet_desc_t {
	size_t num_bufs;
	uint16_t total_len;
	struct vma_buff_t *buff_lst;
	struct timespec hw_timestamp;
};

/* What socketxtreme_poll() says. */
struct vma_completion_t {
	struct vma_packet_desc_t packet;
	uint64_t events;
	uint64_t user_data;
	struct sockaddr_in src;
	int listen_fd;
};

/* A packet that lies where it was received. */
struct __attribute__((packed)) vma_packet_t {
	void *packet_id;
	size_t sz_iov;
	struct iovec iov[];
};

struct __attribute__((packed)) vma_packets_t {
	size_t n_packet_num;
	struct vma_packet_t pkts[];
};

/* What a receive callback is told of a packet. */
struct __attribute__((packed)) vma_info_t {
	size_t struct_sz;
	void *packet_id;
	struct sockaddr_in *src;
	struct sockaddr_in *dst;
	size_t payload_sz;
	uint32_t socket_ready_queue_pkt_count;
	uint32_t socket_ready_queue_byte_count;
	struct timespec hw_timestamp;
	struct timespec sw_timestamp;
};

/* A value of SO_MAX_PACING_RATE: kilobits per second, bytes, bytes. */
struct vma_rate_limit_t {
	uint32_t rate;
	uint32_t max_burst_sz;
	uint16_t typical_pkt_sz;
};

typedef int vma_ring_profile_key;

typedef enum {
	RING_LOGIC_PER_INTERFACE = 0,
	RING_LOGIC_PER_IP = 1,
	RING_LOGIC_PER_SOCKET = 10,
	RING_LOGIC_PER_USER_ID = 11,
	RING_LOGIC_PER_THREAD = 20,
	RING_LOGIC_PER_CORE = 30,
	RING_LOGIC_PER_CORE_ATTACH_THREADS = 31,
	RING_LOGIC_LAST
} ring_logic_t;

typedef enum {
	VMA_RING_ALLOC_MASK_RING_PROFILE_KEY = (1 << 0),
	VMA_RING_ALLOC_MASK_RING_USER_ID = (1 << 1),
	VMA_RING_ALLOC_MASK_RING_INGRESS = (1 << 2),
	VMA_RING_ALLOC_MASK_RING_ENGRESS = (1 << 3)
} vma_ring_alloc_logic_attr_comp_mask;

struct vma_ring_alloc_logic_attr {
	uint32_t comp_mask;
	ring_logic_t ring_alloc_logic;
	uint32_t ring_profile_key;
	uint32_t user_id;
	uint32_t ingress : 1;
	uint32_t engress : 1;
	uint32_t reserved : 30;
};

typedef enum { VMA_RING_PACKET, VMA_RING_CYCLIC_BUFFER, VMA_RING_EXTERNAL_MEM } vma_ring_type;

/* Which fields of the structures below count. */
typedef enum { VMA_RING_ATTR_LAST } vma_ring_type_attr_mask;
typedef enum { VMA_CB_HDR_BYTE = (1 << 0) } vma_cb_ring_attr_mask;
typedef enum { VMA_RING_EXT_ATTR_LAST } vma_ring_ext_attr_mask;
typedef enum {
	VMA_MODIFY_RING_CQ_MODERATION = (1 << 0),
	VMA_MODIFY_RING_CQ_ARM = (1 << 1)
} vma_modify_ring_mask;

typedef enum {
	RAW_PACKET,
	STRIP_NETWORK_HDRS,
	SEPERATE_NETWORK_HDRS,
	PADDED_PACKET
} vma_cb_packet_rec_mode;

struct vma_cyclic_buffer_ring_attr {
	uint32_t comp_mask;
	uint32_t num;
	uint16_t stride_bytes;
	uint16_t hdr_bytes;
	vma_cb_packet_rec_mode packet_receive_mode;
};

struct vma_packet_queue_ring_attr {
	uint32_t comp_mask;
};

struct vma_external_mem_attr {
	uint32_t comp_mask;
};

struct vma_ring_type_attr {
	uint32_t comp_mask;
	vma_ring_type ring_type;
	union {
		struct vma_cyclic_buffer_ring_attr ring_cyclicb;
		struct vma_packet_queue_ring_attr ring_pktq;
		struct vma_external_mem_attr ring_ext;
	};
};

struct vma_cq_moderation_attr {
	uint32_t cq_moderation_count;
	uint32_t cq_moderation_period_usec;
};

struct vma_modify_ring_attr {
	uint32_t comp_bit_mask;
	int ring_fd;
	struct vma_cq_moderation_attr cq_moderation;
};

/* Descriptors of hardware, which there is none of here. */
struct vma_mlx_hw_device_data;

/* Bits of vma_extra_supported_mask. */
typedef enum {
	VMA_EXTRA_API_REGISTER_RECV_CALLBACK = (1 << 0),
	VMA_EXTRA_API_RECVFROM_ZCOPY = (1 << 1),
	VMA_EXTRA_API_FREE_PACKETS = (1 << 2),
	VMA_EXTRA_API_ADD_CONF_RULE = (1 << 3),
	VMA_EXTRA_API_THREAD_OFFLOAD = (1 << 4),
	VMA_EXTRA_API_DUMP_FD_STATS = (1 << 5),
	VMA_EXTRA_API_SOCKETXTREME_POLL = (1 << 6),
	VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS = (1 << 7),
	VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF = (1 << 8),
	VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF = (1 << 9),
	VMA_EXTRA_API_GET_SOCKET_RINGS_NUM = (1 << 10),
	VMA_EXTRA_API_GET_SOCKET_RINGS_FDS = (1 << 11),
	VMA_EXTRA_API_GET_SOCKET_TX_RING_FD = (1 << 12),
	VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER = (1 << 13),
	VMA_EXTRA_API_GET_RING_DIRECT_DESCRIPTORS = (1 << 14),
	VMA_EXTRA_API_ADD_RING_PROFILE = (1 << 16),
	VMA_EXTRA_API_REGISTER_MEMORY_ON_RING = (1 << 17),
	VMA_EXTRA_API_DEREGISTER_MEMORY_ON_RING = (1 << 18),
	VMA_EXTRA_API_MODIFY_RING = (1 << 20),
	VMA_EXTRA_API_IOCTL = (1 << 21)
} vma_extra_api_mask;

typedef vma_recv_callback_retval_t (*vma_recv_callback_t)(
	int fd, size_t sz_iov, struct iovec iov[], struct vma_info_t *vma_info, void *context);

/* The functions. Each returns -1, and says why in errno, if it fails. */
struct __attribute__((packed)) vma_api_t {
	int (*register_recv_callback)(int s, vma_recv_callback_t callback, void *context);
	int (*recvfrom_zcopy)(int s, void *buf, size_t len, int *flags, struct sockaddr *from, socklen_t *fromlen);
	int (*free_packets)(int s, struct vma_packet_t *pkts, size_t count);
	int (*add_conf_rule)(const char *config_line);
	int (*thread_offload)(int offload, pthread_t tid);
	int (*socketxtreme_poll)(int fd, struct vma_completion_t *completions, unsigned int ncompletions, int flags);
	int (*get_socket_rings_num)(int fd);
	int (*get_socket_rings_fds)(int fd, int *ring_fds, int ring_fds_sz);
	int (*get_socket_tx_ring_fd)(int sock_fd, struct sockaddr *to, socklen_t tolen);
	int (*socketxtreme_free_vma_packets)(struct vma_packet_desc_t *packets, int num);
	int (*socketxtreme_ref_vma_buff)(struct vma_buff_t *buff);
	int (*socketxtreme_free_vma_buff)(struct vma_buff_t *buff);
	int (*dump_fd_stats)(int fd, int log_level);
	int (*vma_add_ring_profile)(struct vma_ring_type_attr *profile, vma_ring_profile_key *key);
	int (*get_socket_network_header)(int fd, void *ptr, uint16_t *len);
	int (*get_ring_direct_descriptors)(int fd, struct vma_mlx_hw_device_data *data);
	int (*register_memory_on_ring)(int fd, void *addr, size_t length, uint32_t *key);
	int (*deregister_memory_on_ring)(int fd, void *addr, size_t length);
	int (*vma_modify_ring)(struct vma_modify_ring_attr *mr_data);
	uint64_t vma_extra_supported_mask;
	int (*ioctl)(void *cmsg_hdr, size_t cmsg_len);
};

/* The functions, or NULL without the library. */
static inline struct vma_api_t *vma_get_api(void) {
	struct vma_api_t *api = NULL;
	socklen_t len = sizeof(api);
	return getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &api, &len) < 0 ? NULL : api;
}

#endif
