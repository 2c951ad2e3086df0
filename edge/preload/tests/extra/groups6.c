/* Groups by interface, and across families: what is sent to one comes to those that have joined it there, once each, in order.
   Expects two interfaces besides the loopback device, `one` and `two`, of which each has an IPv6 address. */
#include "ends.h"
#include <net/if.h>

enum { COUNT = 200 };

/* A socket on a port of its own, of any address. */
static int on_port(int domain, uint16_t *port) {
	struct sockaddr_storage at;
	socklen_t len = sizeof at;
	int fd = socket(domain, SOCK_DGRAM, 0), off = 0;
	memset(&at, 0, sizeof at);
	at.ss_family = domain;
	CHECK(fd >= 0);
	if (domain == AF_INET6) CHECK(!setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
	CHECK(!bind(fd, (struct sockaddr *)&at, length(&at)) && !getsockname(fd, (struct sockaddr *)&at, &len));
	*port = domain == AF_INET ? ((struct sockaddr_in *)&at)->sin_port : ((struct sockaddr_in6 *)&at)->sin6_port;
	return fd;
}

static struct sockaddr_in6 six(const char *text, uint16_t port) {
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_port = port };
	CHECK(inet_pton(AF_INET6, text, &at.sin6_addr) == 1);
	return at;
}

static struct sockaddr_in four(const char *text, uint16_t port) {
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = port };
	CHECK(inet_pton(AF_INET, text, &at.sin_addr) == 1);
	return at;
}

/* Joins a group by an interface, by one call or the other, or leaves it. */
static void take_part(int fd, const char *group, unsigned interface, int joins, int is_newer) {
	if (is_newer) {
		struct group_req wish = { .gr_interface = interface };
		struct sockaddr_in6 at = six(group, 0);
		memcpy(&wish.gr_group, &at, sizeof at);
		CHECK(!setsockopt(fd, IPPROTO_IPV6, joins ? MCAST_JOIN_GROUP : MCAST_LEAVE_GROUP, &wish, sizeof wish));
	} else {
		struct ipv6_mreq wish = { .ipv6mr_multiaddr = six(group, 0).sin6_addr, .ipv6mr_interface = interface };
		CHECK(!setsockopt(fd, IPPROTO_IPV6, joins ? IPV6_ADD_MEMBERSHIP : IPV6_DROP_MEMBERSHIP, &wish, sizeof wish));
	}
}

/* Receives the next number, from an address of that family; -1 if nothing comes for a while. */
static int next(int fd, int wait_ms, struct sockaddr_storage *from) {
	struct pollfd polled = { .fd = fd, .events = POLLIN };
	socklen_t len = sizeof *from;
	int number;
	if (poll(&polled, 1, wait_ms) != 1) return -1;
	CHECK(recvfrom(fd, &number, sizeof number, 0, (struct sockaddr *)from, &len) == sizeof number);
	return number;
}

/* Numbers by an interface: the member gets each of them once, or none. */
static void pass(int sender, const struct sockaddr_in6 *group, unsigned interface, int member, int is_reached) {
	struct sockaddr_storage from;
	CHECK(!setsockopt(sender, IPPROTO_IPV6, IPV6_MULTICAST_IF, &interface, sizeof interface));
	for (int number = 0; number < COUNT; number++) {
		CHECK(sendto(sender, &number, sizeof number, 0, (void *)group, sizeof *group) == sizeof number);
		if (!is_reached) continue;
		CHECK(next(member, 5000, &from) == number);
		CHECK(from.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&((struct sockaddr_in6 *)&from)->sin6_addr));
	}
	CHECK(next(member, 50, &from) == -1);
}

static void by_interface(int is_newer) {
	static const char GROUP[] = "ff15::7:1";
	unsigned one = if_nametoindex("one"), two = if_nametoindex("two");
	uint16_t port, own;
	CHECK(one && two);
	int member = on_port(AF_INET6, &port), sender = on_port(AF_INET6, &own);
	struct sockaddr_in6 group = six(GROUP, port);
	take_part(member, GROUP, one, 1, is_newer);
	pass(sender, &group, one, member, 1);
	pass(sender, &group, two, member, 0);
	take_part(member, GROUP, one, 0, is_newer);
	pass(sender, &group, one, member, 0);
	take_part(member, GROUP, two, 1, is_newer);
	pass(sender, &group, one, member, 0);
	pass(sender, &group, two, member, 1);
	/* Another program's socket, too: each gets its own. */
	uint16_t other_port;
	int other = on_port(AF_INET6, &other_port);
	struct sockaddr_in6 other_group = six(GROUP, other_port);
	take_part(other, GROUP, one, 1, !is_newer);
	pass(sender, &other_group, one, other, 1);
	pass(sender, &group, two, member, 1);
	close(member), close(sender), close(other);
}

/* A group of IPv4, of which the member, the sender, or both are sockets of IPv6. `by_rings`: it goes through shared memory. */
static void across(int of_member, int of_sender, const char *device, int by_rings) {
	unsigned interface = if_nametoindex(device);
	uint16_t port, own;
	struct sockaddr_storage from;
	int member = on_port(of_member, &port), sender = on_port(of_sender, &own), in_rings = 0;
	struct ip_mreqn wish = { .imr_multiaddr = four("239.99.0.7", 0).sin_addr, .imr_ifindex = interface };
	CHECK(!setsockopt(member, IPPROTO_IP, IP_ADD_MEMBERSHIP, &wish, sizeof wish));
	CHECK(!setsockopt(sender, IPPROTO_IP, IP_MULTICAST_IF, &wish, sizeof wish));
	struct sockaddr_in plain = four("239.99.0.7", port);
	struct sockaddr_in6 mapped = six("::ffff:239.99.0.7", port);
	for (int number = 0; number < COUNT; number++) {
		void *to = of_sender == AF_INET ? (void *)&plain : &mapped;
		CHECK(sendto(sender, &number, sizeof number, 0, to, of_sender == AF_INET ? sizeof plain : sizeof mapped) == sizeof number);
		in_rings += !in_kernel(member);
		CHECK(next(member, 5000, &from) == number && from.ss_family == of_member);
		if (of_member == AF_INET6) CHECK(IN6_IS_ADDR_V4MAPPED(&((struct sockaddr_in6 *)&from)->sin6_addr));
		CHECK((of_member == AF_INET ? ((struct sockaddr_in *)&from)->sin_port : ((struct sockaddr_in6 *)&from)->sin6_port) == own);
	}
	CHECK(next(member, 50, &from) == -1);
	if (by_rings && getenv("WANT_RINGS")) CHECK(in_rings >= COUNT / 2);
	/* By another interface nothing comes. */
	wish.imr_ifindex = if_nametoindex(by_rings ? "one" : "two");
	CHECK(!setsockopt(sender, IPPROTO_IP, IP_MULTICAST_IF, &wish, sizeof wish));
	for (int number = 0; number < COUNT; number++) sendto(sender, &number, sizeof number, 0, (void *)&mapped, sizeof mapped);
	CHECK(next(member, 50, &from) == -1);
	close(member), close(sender);
}

int main(void) {
	for (int is_newer = 0; is_newer < 2; is_newer++) by_interface(is_newer);
	for (int which = 0; which < 4; which++) {
		int of_member = which & 1 ? AF_INET6 : AF_INET, of_sender = which & 2 ? AF_INET6 : AF_INET;
		across(of_member, of_sender, "lo", 1);
		across(of_member, of_sender, "one", 0);
	}
	return 0;
}
