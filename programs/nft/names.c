/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Name lookups that do not depend on the host. The C library would read
 * nsswitch.conf and load the modules it names. A static program must not load
 * them: they belong to another C library. Rules of programs hold numbers and the
 * protocols below; nft reports all other names as unknown.
 *
 * The functions of this file replace the C library's.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <grp.h>
#include <netdb.h>
#include <pwd.h>
#include <stddef.h>
#include <string.h>

struct xt_xlate;
struct xtables_match;
struct xtables_target;

static char *no_aliases[] = { NULL };

/* The transport protocols, as IANA numbers them. */
static struct protoent protocols[] = {
	{ "icmp", no_aliases, 1 },      { "igmp", no_aliases, 2 },
	{ "tcp", no_aliases, 6 },       { "udp", no_aliases, 17 },
	{ "dccp", no_aliases, 33 },     { "gre", no_aliases, 47 },
	{ "esp", no_aliases, 50 },      { "ah", no_aliases, 51 },
	{ "ipv6-icmp", no_aliases, 58 }, { "icmpv6", no_aliases, 58 },
	{ "sctp", no_aliases, 132 },    { "udplite", no_aliases, 136 },
};
#define PROTOCOLS (sizeof(protocols) / sizeof(protocols[0]))

int getprotobyname_r(const char *name, struct protoent *entry, char *buffer, size_t size, struct protoent **result)
{
	size_t i;

	(void)buffer, (void)size;
	*result = NULL;
	for (i = 0; i < PROTOCOLS && *result == NULL; i++) {
		if (strcmp(protocols[i].p_name, name) == 0) {
			*entry = protocols[i];
			*result = entry;
		}
	}
	return *result != NULL ? 0 : ENOENT;
}

int getprotobynumber_r(int number, struct protoent *entry, char *buffer, size_t size, struct protoent **result)
{
	size_t i;

	(void)buffer, (void)size;
	*result = NULL;
	for (i = 0; i < PROTOCOLS && *result == NULL; i++) {
		if (protocols[i].p_proto == number) {
			*entry = protocols[i];
			*result = entry;
		}
	}
	return *result != NULL ? 0 : ENOENT;
}

int getservbyport_r(int port, const char *protocol, struct servent *entry, char *buffer, size_t size, struct servent **result)
{
	(void)port, (void)protocol, (void)entry, (void)buffer, (void)size;
	*result = NULL;
	return ENOENT;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result)
{
	(void)node, (void)service, (void)hints, (void)result;
	return EAI_NONAME;
}

void freeaddrinfo(struct addrinfo *list)
{
	(void)list;
}

/* Addresses are written as numbers, whatever the caller would like to see. */
int getnameinfo(const struct sockaddr *address, socklen_t length, char *host, socklen_t host_size,
		char *service, socklen_t service_size, int flags)
{
	const void *number;

	(void)length, (void)service;
	if (service_size > 0 || (flags & NI_NAMEREQD))
		return EAI_NONAME;
	switch (address->sa_family) {
	case AF_INET: number = &((const struct sockaddr_in *)address)->sin_addr; break;
	case AF_INET6: number = &((const struct sockaddr_in6 *)address)->sin6_addr; break;
	default: return EAI_FAMILY;
	}
	return inet_ntop(address->sa_family, number, host, host_size) != NULL ? 0 : EAI_OVERFLOW;
}

struct passwd *getpwnam(const char *name)
{
	(void)name;
	return NULL;
}

struct passwd *getpwuid(uid_t uid)
{
	(void)uid;
	return NULL;
}

struct group *getgrnam(const char *name)
{
	(void)name;
	return NULL;
}

struct group *getgrgid(gid_t gid)
{
	(void)gid;
	return NULL;
}

/* libxtables would show rules that iptables made. It is left out, because it loads its
 * extensions from files. nft shows such rules as foreign. */
void xtables_init_all(void) {}
void xtables_set_nfproto(unsigned char family) { (void)family; }

struct xtables_match *xtables_find_match(const char *name, int try, void *matches)
{
	(void)name, (void)try, (void)matches;
	return NULL;
}

struct xtables_target *xtables_find_target(const char *name, int try)
{
	(void)name, (void)try;
	return NULL;
}

struct xt_xlate *xt_xlate_alloc(int size)
{
	(void)size;
	return NULL;
}

void xt_xlate_free(struct xt_xlate *xlate) { (void)xlate; }

const char *xt_xlate_get(struct xt_xlate *xlate)
{
	(void)xlate;
	return "";
}
