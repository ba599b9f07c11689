#define _GNU_SOURCE
#include "berth.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A step's tasks see the files of an image, a directory that the user has
 * prepared. As root its tree is put together, in the task's own mount namespace,
 * and only as the user, when Slurm has done all that it does as root, does it
 * become the root directory: root must never look up a user or load a library in
 * files that somebody else has written. What the change takes is a capability,
 * and the kernel keeps all of root's or none (PR_SET_KEEPCAPS): until then they are
 * permitted to the task, which is the user already and has none in effect, and no
 * program is started. To drop the others before would take them from the plugins
 * that Slurm calls after this one, as root.
 *
 * The directory is looked up with the user's rights. No program in there gains any:
 * with libraries of the user's own, one with a set-user-ID bit would be his. */

/* Linux 5.2 and 5.6; in headers of RHEL 8 they are missing. */
#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
enum { TREE_CLONE = 1, TREE_RECURSIVE = 0x8000, FROM_EMPTY = 4, TO_EMPTY = 0x40, IN_ROOT = 0x10 };

static char wanted[PATH_MAX];

/* Why the step has no image, the tree that will be the root, and where the task is
 * now. */
static char no_image[REASON_SIZE];
static int tree = -1;
static char place[PATH_MAX];

static int take_image(int value, const char *text, int remote)
{
	(void)value;
	if ((text[0] == '/' || strcmp(text, "none") == 0) && strlen(text) < sizeof wanted) {
		strcpy(wanted, text);
		return ESPANK_SUCCESS;
	}
	if (!remote)
		slurm_error("berth: --container-image=%s: write the absolute path of a directory, or none", text);
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

/* The user whose rights files of the image are looked up with. Root might have less:
 * on a network file system it is often nobody. */
static uid_t uid;
static gid_t gid, *groups, before[NGROUPS_MAX];
static int count, saved;

static int learn_user(spank_t spank)
{
	saved = getgroups(NGROUPS_MAX, before);
	if (saved < 0 || spank_get_item(spank, S_JOB_UID, &uid) || spank_get_item(spank, S_JOB_GID, &gid) ||
	    spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &groups, &count))
		return -1;
	return 0;
}

/* open_as_user looks a path up as the user may; in the tree, by links that stay in
 * it. */
static int open_as_user(const char *path, int flags)
{
	struct { uint64_t flags, mode, resolve; } how = { .flags = O_PATH | O_CLOEXEC | flags, .resolve = tree < 0 ? 0 : IN_ROOT };
	if (setgroups(count, groups))
		return -1;
	setfsgid(gid);
	setfsuid(uid);
	int fd = syscall(SYS_openat2, tree, path, &how, sizeof how), why = errno;
	setfsuid(0);
	setfsgid(0);
	if (setgroups(saved, before)) {
		/* No step is worth to go on as root in groups of a user's. */
		slurm_error("berth: groups of slurmstepd: %m");
		_exit(EXIT_FAILURE);
	}
	errno = why;
	return fd;
}

/* put a copy of what is mounted at a path of the host where the tree has that
 * path. */
static int put(const char *path)
{
	int rc = -1;
	int to = open_as_user(path, 0);
	if (to < 0)
		return -1;
	int from = syscall(SYS_open_tree, AT_FDCWD, path, TREE_CLONE | TREE_RECURSIVE | O_CLOEXEC);
	if (from >= 0)
		rc = syscall(SYS_move_mount, from, "", to, "", FROM_EMPTY | TO_EMPTY);
	int why = errno;
	close(from);
	close(to);
	errno = why;
	return rc;
}

/* plant makes the image a mount of its own, at a directory that the step does not
 * need. */
static int plant(int image, const char *at)
{
	struct statvfs flags;
	int copy = syscall(SYS_open_tree, image, "", TREE_CLONE | AT_EMPTY_PATH | O_CLOEXEC);
	if (copy < 0)
		return -1;
	int rc = syscall(SYS_move_mount, copy, "", AT_FDCWD, at, FROM_EMPTY);
	close(copy);
	if (rc || statvfs(at, &flags))
		return -1;
	unsigned long keep = flags.f_flag & (MS_RDONLY | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME);
	if (mount(NULL, at, NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | keep, NULL))
		return -1;
	tree = open(at, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return tree < 0 ? -1 : 0;
}

/* is_host says whether the image is the host's own root, by whatever path: without
 * what is mounted in it, as images are taken, it would show what these mounts cover. */
static int is_host(int image)
{
	struct stat one, host;
	return fstat(image, &one) == 0 && stat("/", &host) == 0 && one.st_dev == host.st_dev && one.st_ino == host.st_ino;
}

static void assemble(spank_t spank, const struct settings *s, const char *path)
{
	static const char *const needed[] = { "/proc", "/sys", "/dev", "/tmp", NULL };
	static const char *const useful[] = { "/var/tmp", "/etc/resolv.conf", "/etc/hosts", "/etc/passwd", "/etc/group", NULL };
	char at[sizeof s->socket];
	const char *const *lists[] = { needed, s->mounts };

	if (!getcwd(place, sizeof place))
		strcpy(place, "/");
	/* First: what is mounted in another namespace is not to be had. */
	if (own_mounts(no_image))
		return;
	if (learn_user(spank)) {
		snprintf(no_image, sizeof no_image, "slurmstepd does not say whose step this is");
		return;
	}
	int image = open_as_user(path, O_DIRECTORY);
	if (image < 0) {
		snprintf(no_image, sizeof no_image, "open the directory %.200s: %s", path, strerror(errno));
		return;
	}
	if (is_host(image)) {
		snprintf(no_image, sizeof no_image, "%.200s is the root of the host: --container-image=none is for that", path);
		goto out;
	}
	strcpy(at, s->socket);
	const char *folder = dirname(at);
	if (plant(image, folder)) {
		snprintf(no_image, sizeof no_image, "mount the directory %.200s at %.100s: %s", path, folder, strerror(errno));
		goto out;
	}
	for (int i = 0; i < 2; i++)
		for (const char *const *one = lists[i]; *one; one++)
			if (put(*one)) {
				const char *remedy = errno == ENOENT ? ": mkdir -p it in there" : "";
				snprintf(no_image, sizeof no_image, "mount %.100s in the directory %.200s: %s%s", *one, path, strerror(errno), remedy);
				goto out;
			}
	for (const char *const *one = useful; *one; one++)
		if (put(*one) && errno != ENOENT && errno != ENOTDIR)
			slurm_error("berth: mount %s in the image %s: %m", *one, path);
	/* Slurm changes the user next. */
	if (prctl(PR_SET_KEEPCAPS, 1))
		snprintf(no_image, sizeof no_image, "keep what it takes to enter the directory: %s", strerror(errno));
out:
	close(image);
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

static int set_capabilities(uint32_t effective, uint32_t permitted)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { { .effective = effective, .permitted = permitted } };
	return syscall(SYS_capset, &header, data);
}

/* enter_image is called in each task, as the user. */
void enter_image(void)
{
	const uint32_t admin = 1U << CAP_SYS_ADMIN;
	if (tree >= 0 && !no_image[0] &&
	    (set_capabilities(admin, admin) || fchdir(tree) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) ||
	     set_capabilities(0, 0) || prctl(PR_SET_KEEPCAPS, 0) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))
		snprintf(no_image, sizeof no_image, "enter the directory: %s", strerror(errno));
	if (no_image[0]) {
		fprintf(stderr, "berth: this step has no container: %s\n", no_image);
		_exit(EXIT_FAILURE);
	}
	if (tree < 0)
		return;
	close(tree);
	if (chdir(place) && chdir("/"))
		_exit(EXIT_FAILURE);
}
