#define _GNU_SOURCE
#include "berth.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Reasons of berth begin with this; berthd resumes only nodes with such a reason. Keep it equal to
 * drainReason in internal/site/berthd/slurmnode.go. */
static const char prefix[] = "berth: ";

/* put_back makes berthd look at this node's state again: it does so while the file is missing. */
static void put_back(const struct settings *s)
{
	char path[sizeof s->socket + 16];
	const char *slash = strrchr(s->socket, '/');
	snprintf(path, sizeof path, "%.*s/in-service", slash ? (int)(slash - s->socket) : 0, s->socket);
	if (unlink(path) && errno != ENOENT)
		slurm_error("berth: remove %s: %m", path);
}

/* own_entry returns Slurm's entry of this node, or NULL. Slurm's name of a node may differ from
 * its host's name. */
static const node_info_t *own_entry(const node_info_msg_t *nodes)
{
	char host[256] = "";
	const node_info_t *found = NULL;
	gethostname(host, sizeof host - 1);
	size_t length = strcspn(host, ".");
	for (uint32_t i = 0; i < nodes->record_count; i++) {
		const node_info_t *one = &nodes->node_array[i];
		if (!one->name || !one->node_hostname || strncmp(one->node_hostname, host, length) != 0 ||
		    (one->node_hostname[length] && one->node_hostname[length] != '.'))
			continue;
		if (found)
			return NULL; /* several slurmd on one host */
		found = one;
	}
	return found;
}

int drain_node(const struct settings *s, const char *why)
{
	node_info_msg_t *nodes = NULL;
	update_node_msg_t change;
	char reason[REASON_SIZE + sizeof prefix];
	int rc = -1;
	if (slurm_load_node(0, &nodes, SHOW_ALL) || !nodes) {
		slurm_error("berth: drain this node: ask the controller for it: %s", slurm_strerror(errno));
		return -1;
	}
	const node_info_t *node = own_entry(nodes);
	if (!node) {
		slurm_error("berth: drain this node: the controller does not know which one it is");
	} else if (node->node_state & NODE_STATE_DRAIN) {
		rc = 0; /* by another job, or by an administrator, whose reason stays */
	} else {
		snprintf(reason, sizeof reason, "%s%s", prefix, why);
		slurm_init_update_node_msg(&change);
		change.node_names = node->name;
		change.node_state = NODE_STATE_DRAIN;
		change.reason = reason;
		change.reason_uid = getuid();
		rc = slurm_update_node(&change) ? -1 : 0;
		if (rc)
			slurm_error("berth: drain %s: %s", node->name, slurm_strerror(errno));
		else
			put_back(s);
	}
	slurm_free_node_info_msg(nodes);
	return rc;
}
