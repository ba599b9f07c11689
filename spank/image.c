#define _GNU_SOURCE
#include "berth.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Which image the tasks of a step see: the one that the user names, or the site. */
static char wanted[PATH_MAX];

/* Whether the step has one, and why not. */
static int has_image;
static char no_image[REASON_SIZE];

void complain(const char *format, ...)
{
	char text[1024];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	slurm_error("berth: %s", text);
}

static int take_image(int value, const char *text, int remote)
{
	(void)value;
	if ((text[0] == '/' || strcmp(text, "none") == 0) && strlen(text) < sizeof wanted) {
		strcpy(wanted, text);
		return ESPANK_SUCCESS;
	}
	if (!remote)
		slurm_error("berth: --container-image=%s: write the absolute path of a directory, or none; 'berth image bundle' makes a directory of an image", text);
	return ESPANK_BAD_ARG;
}

static struct spank_option container_image = {
	.name = "container-image",
	.arginfo = "DIRECTORY|none",
	.usage = "the files that the tasks of steps see: those in this directory, or the host's (none)",
	.has_arg = 1,
	.cb = take_image,
};

void offer_images(spank_t spank)
{
	if (spank_option_register(spank, &container_image) != ESPANK_SUCCESS)
		slurm_error("berth: Slurm does not take the option --container-image");
}

static void assemble(spank_t spank, const struct settings *s, const char *path)
{
	struct user user;
	gid_t *groups;
	if (spank_get_item(spank, S_JOB_UID, &user.uid) || spank_get_item(spank, S_JOB_GID, &user.gid) ||
	    spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &groups, &user.count)) {
		snprintf(no_image, sizeof no_image, "slurmstepd does not say whose step this is");
		return;
	}
	user.groups = groups;
	has_image = assemble_root(&user, s, path, s->mounts, no_image) == 0;
}

/* prepare_image is called in each task, as root. A batch script runs on the host's
 * files, as it starts steps by commands of Slurm, and so does an interactive step. */
void prepare_image(spank_t spank, const struct settings *s)
{
	const char *path = wanted[0] ? wanted : s->image;
	uint32_t step;
	if (!path[0] || strcmp(path, "none") == 0)
		return;
	if (spank_get_item(spank, S_JOB_STEPID, &step))
		snprintf(no_image, sizeof no_image, "slurmstepd does not say which step this is");
	else if (step != SLURM_BATCH_SCRIPT && step != SLURM_INTERACTIVE_STEP)
		assemble(spank, s, path);
}

/* enter_image is called in each task, as the user. */
void enter_image(void)
{
	if (has_image)
		enter_root(no_image);
	if (no_image[0]) {
		fprintf(stderr, "berth: this step has no container: %s\n", no_image);
		_exit(EXIT_FAILURE);
	}
}
