/* berth-session puts a session of sshd (ForceCommand) into its user's pod on this
 * host. It belongs to root and has the set-user-ID bit, because entering a pod
 * requires root. berthd chooses the pod and the image, if the site has one, by the
 * user's number, which comes from the kernel. As root the program reads nothing that
 * the user has set: no argument, variable or file. */
#define _GNU_SOURCE
#include "berth.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

__attribute__((noreturn))
static void refuse(const char *reason)
{
	fprintf(stderr, "berth: no session on this host: %s\n", reason);
	exit(EXIT_FAILURE);
}

void complain(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fputs("berth: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
}

/* A file opened here must not get the number of standard error. */
static void open_standard_files(void)
{
	int fd;
	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd < 0)
		exit(EXIT_FAILURE);
	close(fd);
}

static int same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* pam_berth.so has put sshd's process of this connection into the user's pod at that
 * time, where it forwards. A persistent client (ControlMaster) may return when the
 * user's newest job is another one, and would expect its ports here. Without
 * pam_berth.so this process comes from the host's network, which is that of process
 * 1. */
static void warn_of_another_pod(const struct pod *pod)
{
	struct stat here, there, host;

	if (stat("/proc/self/ns/net", &here) || fstat(pod->network, &there) || stat("/proc/1/ns/net", &host) ||
	    same(&here, &there) || same(&here, &host))
		return;
	complain("this session is in another pod than the one in which this connection of ssh began, and where all that it forwards stays: "
		 "to forward from here, end it with ssh -O exit HOST, and connect again");
}

/* assemble makes the tree of the pod's image and reports whether there is one. The
 * session keeps all of the user's groups on this host, which sshd has given to this
 * process. */
static int assemble(const struct settings *s, struct pod *pod, uid_t uid, char reason[REASON_SIZE])
{
	static gid_t groups[NGROUPS_MAX];
	const char *mounts[MAX_MOUNTS + 1] = { NULL };
	struct user user = { .uid = uid, .gid = getgid(), .groups = groups, .count = getgroups(NGROUPS_MAX, groups) };
	char *rest = pod->mounts, *one;

	if (!pod->image[0])
		return 0;
	for (int i = 0; i < MAX_MOUNTS && (one = strsep(&rest, ":"));)
		if (one[0])
			mounts[i++] = one;
	if (user.count < 0)
		refuse("the kernel does not say which groups the user has");
	if (assemble_root(&user, s, pod->image, mounts, reason))
		refuse(reason);
	return 1;
}

/* enter moves the process into the user's pod and reports whether the session has an
 * image. */
static int enter(uid_t user, const char *name)
{
	static const struct settings settings = { .socket = "/run/berthd/berthd.sock" };
	static struct question question;
	static char reason[REASON_SIZE];
	struct pod pod;

	question_begin(&question, "login");
	question_number(&question, "uid", user);
	question_text(&question, "user", name);
	if (ask_berthd(&settings, &question, &pod, reason))
		refuse(reason);
	if (pod.network < 0)
		refuse("berthd has sent no network");
	warn_of_another_pod(&pod);
	if (setns(pod.network, CLONE_NEWNET)) {
		snprintf(reason, sizeof reason, "enter the network: %s", strerror(errno));
		refuse(reason);
	}
	if (prepare_task(&pod, 0, reason))
		refuse(reason);
	int image = assemble(&settings, &pod, user, reason);
	/* The session's lock stays open in the parent, and is closed in the program. */
	pod.session = -1;
	close_pod(&pod);
	return image;
}

/* drop becomes the user permanently: it sets all three IDs, so that nothing restores
 * root. */
static void drop(uid_t user, gid_t group)
{
	if (setresgid(group, group, group) || setresuid(user, user, user) || geteuid() != user || (user != 0 && setuid(0) == 0))
		refuse("the user cannot be changed");
}

__attribute__((noreturn))
static void run(const char *shell, int image)
{
	static const char plain[] = "/bin/sh";
	const char *command = getenv("SSH_ORIGINAL_COMMAND");
	char login[64];

	/* An image may lack the shells of some users. */
	if (image && access(shell, F_OK) && errno == ENOENT) {
		complain("the image of sessions has no %s: this is %s", shell, plain);
		shell = plain;
	}
	const char *base = strrchr(shell, '/');
	base = base ? base + 1 : shell;
	if (command) {
		execl(shell, base, "-c", command, (char *)NULL);
	} else {
		/* A leading dash makes it a login shell. */
		snprintf(login, sizeof login, "-%s", base);
		execl(shell, login, (char *)NULL);
	}
	fprintf(stderr, "berth: start %s: %s\n", shell, strerror(errno));
	exit(127);
}

int main(void)
{
	static char reason[REASON_SIZE];
	uid_t user = getuid();
	gid_t group = getgid();
	int image = 0;

	open_standard_files();
	/* The caller may ignore SIGCHLD, but children are waited for here. */
	signal(SIGCHLD, SIG_DFL);
	if (geteuid() != 0)
		refuse("berth-session needs the rights of root: chown root berth-session; chmod 4755 berth-session");
	struct passwd *entry = getpwuid(user);
	if (!entry)
		refuse("the user has no entry in passwd");
	char *name = strdup(entry->pw_name);
	char *shell = strdup(entry->pw_shell && entry->pw_shell[0] ? entry->pw_shell : "/bin/sh");
	if (!name || !shell)
		refuse("no memory");
	/* Root has no pod. */
	if (user != 0)
		image = enter(user, name);
	drop(user, group);
	if (image && enter_root(reason))
		refuse(reason);
	if (user != 0)
		run_task();
	run(shell, image);
}
