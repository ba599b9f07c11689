#include "berth.h"

#include <stdio.h>
#include <string.h>

SPANK_PLUGIN(berth, 1)

/* read_settings parses the arguments in plugstack.conf: socket=PATH, image=PATH, and
 * mount=PATH, which may be repeated. */
static struct settings read_settings(int count, char **arguments)
{
	struct settings s = { .socket = "/run/berthd/berthd.sock", .image = "" };
	int mounts = 0;
	for (int i = 0; i < count; i++) {
		if (strncmp(arguments[i], "image=/", 7) == 0)
			s.image = arguments[i] + 6;
		else if (strncmp(arguments[i], "mount=/", 7) == 0 && mounts < MAX_MOUNTS)
			s.mounts[mounts++] = arguments[i] + 6;
		else if (strncmp(arguments[i], "mount=/", 7) == 0)
			slurm_error("berth: plugstack.conf: %s is left out: there may be %d", arguments[i], MAX_MOUNTS);
		else if (strncmp(arguments[i], "socket=", 7) == 0 && strlen(arguments[i] + 7) < sizeof s.socket)
			strcpy(s.socket, arguments[i] + 7);
		else
			slurm_error("berth: plugstack.conf: unknown argument %s", arguments[i]);
	}
	return s;
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
	(void)count, (void)arguments;
	if (spank_context() != S_CTX_SLURMD)
		offer_choice(spank), offer_images(spank);
	return ESPANK_SUCCESS;
}

int slurm_spank_job_prolog(spank_t spank, int count, char **arguments)
{
	struct settings s = read_settings(count, arguments);
	decline_network(spank, &s);
	/* A prolog that fails drains the node for all users. */
	return ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
	if (spank_context() == S_CTX_REMOTE) {
		struct settings s = read_settings(count, arguments);
		enter_network(spank, &s);
	}
	return ESPANK_SUCCESS;
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char **arguments)
{
	struct settings s = read_settings(count, arguments);
	enter_pod();
	prepare_image(spank, &s);
	return ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
	(void)spank, (void)count, (void)arguments;
	refuse_without_network();
	enter_image();
	run_task();
	return ESPANK_SUCCESS;
}

int slurm_spank_job_epilog(spank_t spank, int count, char **arguments)
{
	struct settings s = read_settings(count, arguments);
	leave_network(spank, &s);
	/* An epilog that fails drains the node for all users. */
	return ESPANK_SUCCESS;
}
