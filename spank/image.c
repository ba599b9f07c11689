#define _GNU_SOURCE
#include "berth.h"

#include <ctype.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

/* A name has up to 255 characters, a tag 128, a digest 135. */
enum { MAX_NAME = 520 };

/* The image for the tasks of a step, as named by the user or the site: a directory,
 * "none", or a name in berth's image store. */
static char wanted[PATH_MAX];

/* Whether the step has an image, and the reason if that failed. */
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

/* is_name reports whether a text may be the name of an image. Unlike a path, it never
 * begins with a dot. */
static int is_name(const char *text)
{
	return isalnum((unsigned char)text[0]) && strspn(text, LETTERS "0123456789._-:/@") == strlen(text) && strlen(text) < MAX_NAME;
}

static int take_image(int value, const char *text, int remote)
{
	(void)value;
	if ((text[0] == '/' || is_name(text)) && strlen(text) < sizeof wanted) {
		strcpy(wanted, text);
		return ESPANK_SUCCESS;
	}
	if (!remote)
		slurm_error("berth: --container-image=%s: write the absolute path of a directory, the name of an image, or none", text);
	return ESPANK_BAD_ARG;
}

static struct spank_option container_image = {
	.name = "container-image",
	.arginfo = "DIRECTORY|IMAGE|none",
	.usage = "the files that the tasks of steps see: those in this directory, those of an image of which 'berth image bundle' has made one, or the host's (none)",
	.has_arg = 1,
	.cb = take_image,
};

void offer_images(spank_t spank)
{
	if (spank_option_register(spank, &container_image) != ESPANK_SUCCESS)
		slurm_error("berth: Slurm does not take the option --container-image");
}

/* find_bundle returns the path where 'berth image bundle NAME' puts an image, given
 * the job's variables (internal/launch/imagecache/command.go). The file name is the image's
 * short name in Docker's form, with a tag, and with slashes escaped. */
static void find_bundle(spank_t spank, uid_t uid, const char *name, char path[PATH_MAX])
{
	static const char *const usual[] = { "docker.io/library/", "docker.io/", NULL };
	char cache[PATH_MAX], one[3 * MAX_NAME] = "";
	const char *below = "";

	if (spank_getenv(spank, "BERTH_IMAGE_CACHE", cache, sizeof cache) != ESPANK_SUCCESS) {
		below = "/berth";
		if (spank_getenv(spank, "XDG_CACHE_HOME", cache, sizeof cache) != ESPANK_SUCCESS) {
			below = "/.cache/berth";
			if (spank_getenv(spank, "HOME", cache, sizeof cache) != ESPANK_SUCCESS)
				cache[0] = '\0';
		}
	}
	for (const char *const *prefix = usual; *prefix; prefix++)
		if (strncmp(name, *prefix, strlen(*prefix)) == 0) {
			name += strlen(*prefix);
			break;
		}
	const char *last = strrchr(name, '/');
	const char *tag = strpbrk(last ? last : name, ":@") ? "" : ":latest";
	for (char *to = one; *name; name++)
		to += sprintf(to, *name == '/' ? "%%2F" : "%c", *name);
	if (snprintf(path, PATH_MAX, "%s%s/bundles-%u/%s%s/rootfs", cache, below, (unsigned)uid, one, tag) >= PATH_MAX)
		path[0] = '\0';
}

static void assemble(spank_t spank, const struct settings *s, const char *path)
{
	struct user user;
	gid_t *groups;
	char bundle[PATH_MAX], reason[REASON_SIZE];
	if (spank_get_item(spank, S_JOB_UID, &user.uid) || spank_get_item(spank, S_JOB_GID, &user.gid) ||
	    spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &groups, &user.count)) {
		snprintf(no_image, sizeof no_image, "slurmstepd does not say whose step this is");
		return;
	}
	user.groups = groups;
	if (path[0] == '/') {
		has_image = assemble_root(&user, s, path, s->mounts, no_image) == 0;
		return;
	}
	find_bundle(spank, user.uid, path, bundle);
	has_image = assemble_root(&user, s, bundle, s->mounts, reason) == 0;
	if (!has_image)
		snprintf(no_image, sizeof no_image, "the image %.150s: %.250s; 'berth image pull' or 'import' and 'berth image bundle' make it", path, reason);
}

/* prepare_image is called in each task, as root. Batch scripts and interactive steps
 * run on the host's files, because they start steps with Slurm's commands. */
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
