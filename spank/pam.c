/* sshd calls pam_berth.so when a user's session begins (PAM's "session"), in the root
 * process of that connection. The module moves this process into the network of the
 * user's pod on this host, and gives it the pod's resolver. So everything that sshd
 * then does for the user happens there: the ports that it listens on and connects to
 * (ssh -L, -R, -D, -W, X11), and the shell's startup files, which run before
 * berth-session. berth-session puts the user's processes into the pod.
 *
 * The module runs before sshd becomes the user, so nothing that the user has set
 * affects it. */
#define _GNU_SOURCE
#include "berth.h"

#include <errno.h>
#include <pwd.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include <security/pam_ext.h>
#include <security/pam_modules.h>
#include <security/pam_modutil.h>

static const char held[] = "berth_session";

/* A pod lives as long as a session holds it. The session holds it until the session
 * or sshd ends. */
static void let_go(pam_handle_t *pam, void *data, int status)
{
	(void)pam;
	(void)status;
	close(*(int *)data);
	free(data);
}

static int hold(pam_handle_t *pam, int session)
{
	if (session < 0)
		return 0;
	int *kept = malloc(sizeof *kept);
	if (!kept)
		return -1;
	*kept = session;
	if (pam_set_data(pam, held, kept, let_go) == PAM_SUCCESS)
		return 0;
	free(kept);
	return -1;
}

/* may_move reports whether only this session would move to another network. A process
 * of another service than sshd may have several threads, or sessions of several users. */
static int may_move(void)
{
	static int moved;
	struct stat threads;
	/* A directory has one link for itself, one from its parent, and one for each
	 * subdirectory. */
	return !moved++ && stat("/proc/self/task", &threads) == 0 && threads.st_nlink == 3;
}

static int enter(pam_handle_t *pam, const struct passwd *user, char reason[REASON_SIZE])
{
	static const struct settings settings = { .socket = "/run/berthd/berthd.sock" };
	static struct question question;
	struct pod pod;
	int rc = -1;

	if (!may_move()) {
		snprintf(reason, REASON_SIZE, "pam_berth.so is for sshd alone, whose processes have one session each");
		return -1;
	}
	question_begin(&question, "login");
	question_number(&question, "uid", user->pw_uid);
	question_text(&question, "user", user->pw_name);
	if (ask_berthd(&settings, &question, &pod, reason))
		return -1;
	if (pod.network < 0) {
		snprintf(reason, REASON_SIZE, "berthd has sent no network");
	} else if (hold(pam, pod.session)) {
		snprintf(reason, REASON_SIZE, "no memory");
	} else {
		pod.session = -1;
		if (setns(pod.network, CLONE_NEWNET))
			snprintf(reason, REASON_SIZE, "enter the network: %s", strerror(errno));
		else
			rc = find_names(&pod, reason);
	}
	close_pod(&pod);
	return rc;
}

int pam_sm_open_session(pam_handle_t *pam, int flags, int argc, const char **argv)
{
	const char *name = NULL;
	char reason[REASON_SIZE];

	(void)flags;
	(void)argc;
	(void)argv;
	if (pam_get_user(pam, &name, NULL) != PAM_SUCCESS || !name)
		return PAM_SESSION_ERR;
	const struct passwd *user = pam_modutil_getpwnam(pam, name);
	if (!user)
		return PAM_USER_UNKNOWN;
	/* Root has no pod. */
	if (user->pw_uid == 0 || enter(pam, user, reason) == 0)
		return PAM_SUCCESS;
	pam_error(pam, "berth: no session on this host: %s", reason);
	pam_syslog(pam, LOG_ERR, "no session of %s: %s", user->pw_name, reason);
	return PAM_SESSION_ERR;
}

/* The process ends with the session, so it does not return to the host's network. */
int pam_sm_close_session(pam_handle_t *pam, int flags, int argc, const char **argv)
{
	(void)flags;
	(void)argc;
	(void)argv;
	pam_set_data(pam, held, NULL, NULL);
	return PAM_SUCCESS;
}
