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

/* A task of a step, or a session, sees the files of an image, which is a prepared
 * directory. Root assembles its tree in the process's own mount namespace. The tree
 * becomes the root directory only after the process has become the user and all work
 * as root is done: root must never look up a user or load a library from files that
 * somebody else has written. That change requires a capability, and the kernel keeps
 * all of root's capabilities or none (PR_SET_KEEPCAPS). Until then they stay
 * permitted to the process, which is already the user, has none in effect, and starts
 * no program. Dropping the others earlier would take them from the plugins that Slurm
 * calls later as root.
 *
 * The directory is looked up with the user's rights. No program in it gains rights:
 * with the user's own libraries, a set-user-ID program would do whatever the user
 * wants. */

/* Linux 5.2 and 5.6; the headers of RHEL 8 do not have them. */
#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
enum { TREE_CLONE = 1, TREE_RECURSIVE = 0x8000, FROM_EMPTY = 4, TO_EMPTY = 0x40, NO_MAGICLINKS = 2, IN_ROOT = 0x10 };

/* The directory that will be the root, or -1; the working directory; and root's own
 * supplementary groups, with their number. */
static int tree = -1;
static char place[PATH_MAX];
static gid_t before[NGROUPS_MAX];
static int saved;

/* open_as_user looks a path up with the user's IDs and groups. Without them root might
 * have fewer rights than the user: network file systems often treat root as nobody. It
 * returns a descriptor, or -1 with errno. In the tree, links stay in it.
 * Outside, magic links of /proc are rejected: they lead to other processes' files,
 * and root may follow them. */
static int open_as_user(const struct user *user, const char *path, int flags)
{
	struct { uint64_t flags, mode, resolve; } how = { .flags = O_PATH | O_CLOEXEC | flags, .resolve = tree < 0 ? NO_MAGICLINKS : IN_ROOT };
	if (setgroups(user->count, user->groups))
		return -1;
	setfsgid(user->gid);
	setfsuid(user->uid);
	int fd, tries = 100;
	/* For "..", also in a link, the call fails if something is mounted or renamed
	 * meanwhile. */
	do
		fd = syscall(SYS_openat2, tree, path, &how, sizeof how);
	while (fd < 0 && errno == EAGAIN && --tries);
	int why = errno;
	setfsuid(0);
	setfsgid(0);
	if (setgroups(saved, before)) {
		/* Never continue as root with a user's groups. */
		complain("restore root's groups: %s", strerror(errno));
		_exit(EXIT_FAILURE);
	}
	errno = why;
	return fd;
}

/* Copies of the mounts at paths of the host, for the same paths in the tree. */
static struct {
	const char *path;
	int copy;
	/* Whether it is an error if this cannot be mounted in the image. */
	int needed;
} shown[32];
static int count;

/* take copies a mount of the host to shown, before the tree covers anything. It returns 0,
 * or -1 with the reason if a needed mount cannot be copied. */
static int take(const char *path, int needed, char reason[REASON_SIZE])
{
	int copy = count < (int)(sizeof shown / sizeof shown[0]) ? syscall(SYS_open_tree, AT_FDCWD, path, TREE_CLONE | TREE_RECURSIVE | O_CLOEXEC) : -1;
	if (copy >= 0) {
		shown[count].path = path;
		shown[count].copy = copy;
		shown[count++].needed = needed;
	} else if (needed) {
		snprintf(reason, REASON_SIZE, "show %.100s of the host in an image: %s: it is among the mounts for images of this site", path, strerror(errno));
		return -1;
	}
	return 0;
}

/* put attaches a copy at a path in the tree. It returns 0, or -1 with errno. */
static int put(const struct user *user, const char *path, int copy)
{
	int to = open_as_user(user, path, 0);
	if (to < 0)
		return -1;
	int rc = syscall(SYS_move_mount, copy, "", to, "", FROM_EMPTY | TO_EMPTY), why = errno;
	close(to);
	errno = why;
	return rc;
}

/* plant makes the image a separate mount, at a directory that the user does not need.
 * The mounts in the image are included: otherwise an image that is a directory of the
 * host would show the files that its mounts cover. */
static int plant(int image, const char *at)
{
	struct statvfs flags;
	int copy = syscall(SYS_open_tree, image, "", TREE_CLONE | TREE_RECURSIVE | AT_EMPTY_PATH | O_CLOEXEC);
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

/* is_host reports whether the image is the host's own root, by whatever path. */
static int is_host(int image)
{
	struct stat one, host;
	return fstat(image, &one) == 0 && stat("/", &host) == 0 && one.st_dev == host.st_dev && one.st_ino == host.st_ino;
}

/* leads_nowhere reports whether a path in the tree is a dangling link. In many images
 * resolv.conf is one, made for a program that does not run here. It does not change
 * errno. */
static int leads_nowhere(const struct user *user, const char *path)
{
	int why = errno;
	int link = why == ENOENT ? open_as_user(user, path, O_NOFOLLOW) : -1;
	errno = why;
	return link >= 0 && close(link) == 0;
}

/* assemble_root returns 0, or -1 with the reason. It runs as root, before the process
 * becomes the user. */
int assemble_root(const struct user *user, const struct settings *s, const char *path, const char *const *mounts, char reason[REASON_SIZE])
{
	static const char *const needed[] = { "/proc", "/sys", "/dev", "/tmp", NULL };
	static const char *const useful[] = { "/var/tmp", "/etc/resolv.conf", "/etc/hosts", "/etc/passwd", "/etc/group", NULL };
	char at[sizeof s->socket];
	const char *const *lists[] = { needed, mounts, useful };
	int rc = -1;

	if (!getcwd(place, sizeof place))
		strcpy(place, "/");
	/* Get a mount namespace before copying: mounts of another namespace cannot be
	 * copied. */
	if (own_mounts(reason))
		return -1;
	saved = getgroups(NGROUPS_MAX, before);
	if (saved < 0) {
		snprintf(reason, REASON_SIZE, "ask for groups: %s", strerror(errno));
		return -1;
	}
	int image = open_as_user(user, path, O_DIRECTORY);
	if (image < 0) {
		const char *remedy = errno == ENOTDIR ? ": 'berth image import' takes archives, and 'berth image bundle' makes a directory" : "";
		snprintf(reason, REASON_SIZE, "open the directory %.200s: %s%s", path, strerror(errno), remedy);
		return -1;
	}
	if (is_host(image)) {
		snprintf(reason, REASON_SIZE, "%.200s is the root of the host, which is not an image", path);
		goto out;
	}
	for (int i = 0; i < 3; i++)
		for (const char *const *one = lists[i]; *one; one++)
			if (take(*one, i < 2, reason))
				goto out;
	strcpy(at, s->socket);
	const char *folder = dirname(at);
	if (plant(image, folder)) {
		snprintf(reason, REASON_SIZE, "mount the directory %.200s at %.100s: %s", path, folder, strerror(errno));
		goto out;
	}
	for (int i = 0; i < count; i++) {
		if (put(user, shown[i].path, shown[i].copy) == 0)
			continue;
		if (shown[i].needed) {
			const char *remedy = errno == ENOENT ? ": mkdir -p it in there" : "";
			snprintf(reason, REASON_SIZE, "mount %.100s in the directory %.200s: %s%s", shown[i].path, path, strerror(errno), remedy);
			goto out;
		}
		if (leads_nowhere(user, shown[i].path))
			complain("%s in the image %s is a link that leads nowhere, so that the host's is not shown there: make it a file", shown[i].path, path);
		else if (errno != ENOENT && errno != ENOTDIR)
			complain("mount %s in the image %s: %s", shown[i].path, path, strerror(errno));
	}
	/* The process becomes the user next. */
	rc = prctl(PR_SET_KEEPCAPS, 1);
	if (rc)
		snprintf(reason, REASON_SIZE, "keep the capability to enter the directory: %s", strerror(errno));
out:
	while (count > 0)
		close(shown[--count].copy);
	close(image);
	return rc;
}

/* set_capabilities sets capabilities 0 to 31 and clears the others. */
static int set_capabilities(uint32_t effective, uint32_t permitted)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { { .effective = effective, .permitted = permitted } };
	return syscall(SYS_capset, &header, data);
}

/* enter_root returns 0, or -1 with the reason, after which the process must end. It runs as the
 * user. */
int enter_root(char reason[REASON_SIZE])
{
	const uint32_t admin = 1U << CAP_SYS_ADMIN;
	if (set_capabilities(admin, admin) || fchdir(tree) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) ||
	    set_capabilities(0, 0) || prctl(PR_SET_KEEPCAPS, 0) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    (chdir(place) && chdir("/"))) {
		snprintf(reason, REASON_SIZE, "enter the directory: %s", strerror(errno));
		return -1;
	}
	close(tree);
	return 0;
}
