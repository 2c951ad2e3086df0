/* Loads libibverbs as NCCL does: by dlopen, and each function by dlvsym. Prints the devices. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	static const char *needed[] = {
		"ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name", "ibv_open_device", "ibv_close_device",
		"ibv_get_async_event", "ibv_ack_async_event", "ibv_query_device", "ibv_query_port", "ibv_query_gid",
		"ibv_query_qp", "ibv_alloc_pd", "ibv_dealloc_pd", "ibv_reg_mr", "ibv_dereg_mr", "ibv_create_cq",
		"ibv_destroy_cq", "ibv_create_qp", "ibv_modify_qp", "ibv_destroy_qp", "ibv_fork_init", "ibv_event_type_str",
	};
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	if (!library)
		return 2;
	for (unsigned i = 0; i < sizeof(needed) / sizeof(*needed); i++)
		if (!dlvsym(library, needed[i], "IBVERBS_1.1") || !dlsym(library, needed[i])) {
			printf("missing %s\n", needed[i]);
			return 3;
		}
	if (!dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8") || !dlvsym(library, "ibv_query_ece", "IBVERBS_1.10"))
		return 4;
	void **(*list)(int *) = dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1");
	const char *(*name)(void *) = dlvsym(library, "ibv_get_device_name", "IBVERBS_1.1");
	void **devices = list(NULL);
	for (; devices && *devices; devices++)
		printf("%s\n", name(*devices));
	return 0;
}
