/* The extra functions as a whole: what is in the mask does something, the rest says that it does not. */
#include "ends.h"
#include <mellanox/vma_extra.h>

int main(void) {
	struct vma_api_t *api = vma_get_api();
	CHECK(api);
	/* No ring is hardware's, and no memory is registered: what is for those is not announced. */
	uint64_t xtreme = VMA_EXTRA_API_SOCKETXTREME_POLL | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS |
		VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF;
	CHECK(api->vma_extra_supported_mask == (VMA_EXTRA_API_REGISTER_RECV_CALLBACK | VMA_EXTRA_API_RECVFROM_ZCOPY |
		VMA_EXTRA_API_FREE_PACKETS | VMA_EXTRA_API_ADD_CONF_RULE | VMA_EXTRA_API_THREAD_OFFLOAD |
		VMA_EXTRA_API_DUMP_FD_STATS | VMA_EXTRA_API_GET_SOCKET_RINGS_NUM | VMA_EXTRA_API_GET_SOCKET_RINGS_FDS |
		VMA_EXTRA_API_GET_SOCKET_TX_RING_FD | VMA_EXTRA_API_ADD_RING_PROFILE |
		(getenv("VMA_SOCKETXTREME") ? xtreme : 0)));
	CHECK(api->get_ring_direct_descriptors(0, NULL) < 0 && errno == EOPNOTSUPP);
	CHECK(api->register_memory_on_ring(0, NULL, 0, NULL) < 0 && errno == EOPNOTSUPP);
	CHECK(api->deregister_memory_on_ring(0, NULL, 0) < 0 && errno == EOPNOTSUPP);
	CHECK(api->vma_modify_ring(NULL) < 0 && errno == EOPNOTSUPP);
	CHECK(api->get_socket_network_header(0, NULL, NULL) < 0 && errno == EINVAL);
	CHECK(api->ioctl(NULL, 0) < 0 && errno == EOPNOTSUPP);

	int ends[2], flags = 0, key = 0;
	char text[100] = "text";
	stream(AF_INET, ends);
	warm_up(ends);
	uint16_t header_len = 0;
	int fresh = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(api->get_socket_network_header(fresh, NULL, &header_len) < 0 && errno == ENOTCONN);
	CHECK(api->get_socket_network_header(ends[0], NULL, &header_len) < 0 && errno == EOPNOTSUPP);
	close(fresh);
	/* What a socket is called in completions. */
	uint64_t data = 0;
	socklen_t len = sizeof data;
	CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_VMA_USER_DATA, &data, &len) && data == (uint64_t)ends[0]);
	data = 0x123456789abcdef0;
	CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data));
	data = 0;
	CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_VMA_USER_DATA, &data, &len) && data == 0x123456789abcdef0);
	CHECK(setsockopt(ends[0], SOL_SOCKET, SO_VMA_USER_DATA, &data, 4) < 0 && errno == EINVAL);
	CHECK(setsockopt(ends[0], SOL_SOCKET, SO_VMA_USER_DATA, NULL, 8) < 0 && errno == EFAULT);
	/* Profiles and wishes for rings. */
	struct vma_ring_type_attr profile = { .ring_type = VMA_RING_PACKET };
	CHECK(!api->vma_add_ring_profile(&profile, &key) && key > 0);
	struct vma_ring_alloc_logic_attr logic = {
		.comp_mask = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY | VMA_RING_ALLOC_MASK_RING_INGRESS,
		.ring_alloc_logic = RING_LOGIC_PER_SOCKET, .ring_profile_key = key, .ingress = 1 };
	CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof logic));
	logic.ring_profile_key = key + 1;
	CHECK(setsockopt(ends[0], SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof logic) < 0 && errno == EINVAL);
	logic.ring_profile_key = key, logic.ring_alloc_logic = 12;
	CHECK(setsockopt(ends[0], SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof logic) < 0 && errno == EINVAL);
	profile.ring_type = VMA_RING_CYCLIC_BUFFER;
	CHECK(api->vma_add_ring_profile(&profile, &key) < 0 && errno == EOPNOTSUPP);
	CHECK(api->vma_add_ring_profile(NULL, &key) < 0 && errno == EINVAL);
	struct iovec memory = { text, sizeof text };
	CHECK(setsockopt(ends[0], SOL_SOCKET, SO_VMA_RING_USER_MEMORY, &memory, sizeof memory) < 0 && errno == EOPNOTSUPP);
	uint32_t tag = 7;
	CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, sizeof tag));
	CHECK(setsockopt(ends[0], SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, 1) < 0 && errno == EINVAL);
	/* A dummy sends nothing. */
	int dummy = send(ends[0], text, 4, VMA_SND_FLAGS_DUMMY);
	if (getenv("WANT_RINGS")) CHECK(dummy == 4);
	else CHECK(dummy < 0 && errno == EINVAL);
	CHECK(recv(ends[1], text, 4, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	int letters[2];
	mail(AF_INET6, letters);
	warm_up(letters);
	dummy = send(letters[0], text, 4, VMA_SND_FLAGS_DUMMY);
	if (getenv("WANT_RINGS")) CHECK(dummy == 4);
	else CHECK(dummy < 0 && errno == EINVAL);
	struct iovec part = { text, 4 };
	struct mmsghdr messages[2] = { { { .msg_iov = &part, .msg_iovlen = 1 } }, { { .msg_iov = &part, .msg_iovlen = 1 } } };
	dummy = sendmmsg(letters[0], messages, 2, VMA_SND_FLAGS_DUMMY);
	if (getenv("WANT_RINGS")) CHECK(dummy == 2);
	else CHECK(dummy < 0 && errno == EINVAL);
	CHECK(recv(letters[1], text, 4, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	/* What is no socket of ours. */
	CHECK(api->free_packets(999, NULL, 1) < 0 && errno == EINVAL);
	CHECK(api->free_packets(ends[0], NULL, 1) < 0 && errno == EFAULT);
	flags = MSG_VMA_ZCOPY_FORCE;
	CHECK(api->recvfrom_zcopy(999, text, sizeof text, &flags, NULL, NULL) < 0);
	CHECK(api->recvfrom_zcopy(ends[1], text, sizeof text, NULL, NULL, NULL) < 0 && errno == EFAULT);
	CHECK(api->recvfrom_zcopy(ends[1], text, 10, &flags, NULL, NULL) < 0 && errno == ENOBUFS);
	/* No more is received. */
	int one = 1;
	CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &one, sizeof one));
	CHECK(recv(ends[1], text, 4, 0) == 0);
	return 0;
}
