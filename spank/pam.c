/* pam_berth.so is called by sshd as a session of a user begins (PAM's "session"), in
 * the process of root's that has been made for it. That is put into the network of the pod
 * that berthd has for the user on this host, where it knows the pod's names; and with it
 * all that sshd then does in the user's name: what it listens on and connects to for him
 * (ssh -L, -R, -D, -W, X11), and his shell's own files, which it reads before berth-session
 * is started. His processes are put into the pod by berth-session.
 *
 * As the module is called before sshd becomes the user, nothing that he has set counts. */
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

/* A pod lives as long as its sessions hold it, and a session until sshd ends, or it. */
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

/* Where a process has several threads, or sessions of several users, as services have that are no
 * sshd, others of it would be in this network, too. */
static int may_move(void)
{
	static int moved;
	struct stat threads;
	/* A directory has a link for itself, one from above, and one for each of its directories. */
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
	/* Root is in no pod. */
	if (user->pw_uid == 0 || enter(pam, user, reason) == 0)
		return PAM_SUCCESS;
	pam_error(pam, "berth: no session on this host: %s", reason);
	pam_syslog(pam, LOG_ERR, "no session of %s: %s", user->pw_name, reason);
	return PAM_SESSION_ERR;
}

/* The process ends with the session, and does not go back. */
int pam_sm_close_session(pam_handle_t *pam, int flags, int argc, const char **argv)
{
	(void)flags;
	(void)argc;
	(void)argv;
	pam_set_data(pam, held, NULL, NULL);
	return PAM_SUCCESS;
}
