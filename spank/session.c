/* berth-session puts a session of sshd (ForceCommand) into the pod that berthd has
 * for its user on this host. It belongs to root and has the set-user-ID bit: to
 * enter a pod takes root, and into which one is berthd's to say, by the user's
 * number, which is the kernel's to say. As root it reads nothing that the user
 * has set: no argument, variable or file. */
#define _GNU_SOURCE
#include "berth.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noreturn))
static void refuse(const char *reason)
{
	fprintf(stderr, "berth: no session on this host: %s\n", reason);
	exit(EXIT_FAILURE);
}

/* A file that we open must not become the standard error of anybody. */
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

static void enter(uid_t user, const char *name)
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
	if (setns(pod.network, CLONE_NEWNET)) {
		snprintf(reason, sizeof reason, "enter the network: %s", strerror(errno));
		refuse(reason);
	}
	if (prepare_task(&pod, 0, reason))
		refuse(reason);
	/* What the session holds is kept, and closed in its program. */
	pod.session = -1;
	close_pod(&pod);
}

/* become the user for good: all three, so that nothing brings root back. */
static void drop(uid_t user, gid_t group)
{
	if (setresgid(group, group, group) || setresuid(user, user, user) || geteuid() != user || (user != 0 && setuid(0) == 0))
		refuse("the user cannot be changed");
}

__attribute__((noreturn))
static void run(const char *shell)
{
	const char *command = getenv("SSH_ORIGINAL_COMMAND");
	const char *base = strrchr(shell, '/');
	char login[64];

	base = base ? base + 1 : shell;
	if (command) {
		execl(shell, base, "-c", command, (char *)NULL);
	} else {
		/* A login shell knows by the dash that it is one. */
		snprintf(login, sizeof login, "-%s", base);
		execl(shell, login, (char *)NULL);
	}
	fprintf(stderr, "berth: start %s: %s\n", shell, strerror(errno));
	exit(127);
}

int main(void)
{
	uid_t user = getuid();
	gid_t group = getgid();

	open_standard_files();
	if (geteuid() != 0)
		refuse("berth-session needs the rights of root: chown root berth-session; chmod 4755 berth-session");
	struct passwd *entry = getpwuid(user);
	if (!entry)
		refuse("the user has no entry in passwd");
	char *name = strdup(entry->pw_name);
	char *shell = strdup(entry->pw_shell && entry->pw_shell[0] ? entry->pw_shell : "/bin/sh");
	if (!name || !shell)
		refuse("no memory");
	/* Root is in no pod. */
	if (user != 0)
		enter(user, name);
	drop(user, group);
	if (user != 0)
		run_task();
	run(shell);
}
