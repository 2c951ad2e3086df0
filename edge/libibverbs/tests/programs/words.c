/* Names of numbers, and rates, as the library in front says them and as the system's does, which is loaded beside it. Prints
 * what differs, and ends with how much that is. The same of what the kernel tells of ways and queue pairs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <stdio.h>
#include <string.h>

static void *behind;
static int wrong;

static void names(const char *what, int last)
{
	const char *(*here)(int) = dlsym(RTLD_DEFAULT, what), *(*there)(int) = dlsym(behind, what);
	for (int number = -2; number <= last; number++)
		if (strcmp(here(number), there(number))) {
			printf("%s(%d): %s, not %s\n", what, number, here(number), there(number));
			wrong++;
		}
}

static void numbers(const char *what, int last)
{
	int (*here)(int) = dlsym(RTLD_DEFAULT, what), (*there)(int) = dlsym(behind, what);
	for (int number = -2; number <= last; number++)
		if (here(number) != there(number)) {
			printf("%s(%d): %d, not %d\n", what, number, here(number), there(number));
			wrong++;
		}
}

/* Bytes that all differ, turned by both: neither changes what the other leaves. */
static void copies(const char *what, size_t size, size_t from_size)
{
	void (*here)(void *, void *) = dlsym(RTLD_DEFAULT, what), (*there)(void *, void *) = dlsym(behind, what);
	unsigned char from[256], ours[256], theirs[256];
	for (int i = 0; i < 256; i++)
		from[i] = i + 1, ours[i] = theirs[i] = 255 - i;
	here(ours, from);
	there(theirs, from);
	if (from_size > sizeof from || size > sizeof ours || memcmp(ours, theirs, sizeof ours)) {
		printf("%s differs\n", what);
		wrong++;
	}
}

int main(void)
{
	behind = dlmopen(LM_ID_NEWLM, "libibverbs.so.1", RTLD_NOW);
	if (!behind || dlsym(behind, "ibv_wc_status_str") == dlsym(RTLD_DEFAULT, "ibv_wc_status_str")) {
		printf("no library behind: %s\n", dlerror());
		return 99;
	}
	names("ibv_node_type_str", 16);
	names("ibv_port_state_str", 16);
	names("ibv_event_type_str", 40);
	names("ibv_wc_status_str", 40);
	numbers("ibv_rate_to_mult", 64);
	numbers("ibv_rate_to_mbps", 64);
	numbers("mult_to_ibv_rate", 1024);
	numbers("mbps_to_ibv_rate", 2000000);
	copies("ibv_copy_ah_attr_from_kern", sizeof(struct ibv_ah_attr), sizeof(struct ib_uverbs_ah_attr));
	copies("ibv_copy_qp_attr_from_kern", sizeof(struct ibv_qp_attr), sizeof(struct ib_uverbs_qp_attr));
	copies("ibv_copy_path_rec_from_kern", sizeof(struct ibv_sa_path_rec), sizeof(struct ib_user_path_rec));
	copies("ibv_copy_path_rec_to_kern", sizeof(struct ib_user_path_rec), sizeof(struct ibv_sa_path_rec));
	return wrong > 90 ? 90 : wrong;
}
