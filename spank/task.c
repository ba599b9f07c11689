#define _GNU_SOURCE
#include "berth.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

/* Linux 5.9; the glibc of RHEL 8 has no function for it. */
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/* A task enters the pod's PID namespace in two steps. As root it sets the namespace
 * for its children, and mounts that namespace's /proc. As the user it forks, after
 * Slurm has put it into its control group, process group and session and has
 * connected its terminal. The child inherits all of that and becomes the program. The
 * parent stays outside and passes on signals and the exit status, because slurmstepd
 * knows no other process.
 *
 * slurmstepd itself stays outside: a process whose children are born in another PID
 * namespace cannot create threads. */

/* slurm.h has the type; the program that loads the plugin has the variable. */
extern slurm_conf_t slurm_conf __attribute__((weak));

/* Whether run_task forks, because prepare_task has succeeded, and whether the task is a
 * batch script. */
static int forks, is_script;

/* The descriptor of a session's lock, which the parent keeps open, or -1. */
static int held = -1;

/* mount_proc mounts /proc in a child: a /proc shows the PID namespace of the process
 * that mounts it. It uses vfork, because copying slurmstepd's memory would take eight
 * times as long as everything else here. */
static int mount_proc(void)
{
	int status;
	pid_t child = vfork();
	if (child < 0)
		return -1;
	if (child == 0)
		_exit(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) ? errno : 0);
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	errno = WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
	return errno ? -1 : 0;
}

/* own_mounts gives the task a mount namespace, once. It returns 0, or -1 with the reason. Later mounts of the host, such
 * as home folders, still appear in it. */
int own_mounts(char reason[REASON_SIZE])
{
	static int done;
	if (!done && (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))) {
		snprintf(reason, REASON_SIZE, "make a mount namespace: %s", strerror(errno));
		return -1;
	}
	done = 1;
	return 0;
}

/* find_names makes this process use the resolver of its pod. It returns 0, or -1 with the
 * reason. */
int find_names(const struct pod *pod, char reason[REASON_SIZE])
{
	if (!pod->resolver[0])
		return 0;
	if (own_mounts(reason))
		return -1;
	if (mount(pod->resolver, "/etc/resolv.conf", NULL, MS_BIND, NULL)) {
		snprintf(reason, REASON_SIZE, "mount the /etc/resolv.conf of the pod: %s", strerror(errno));
		return -1;
	}
	return 0;
}

/* prepare_task returns 0, or -1 with the reason. It runs in the task, as root. */
int prepare_task(const struct pod *pod, int script, char reason[REASON_SIZE])
{
	if (setns(pod->processes, CLONE_NEWPID)) {
		snprintf(reason, REASON_SIZE, "enter the processes of the pod: %s", strerror(errno));
		return -1;
	}
	if (own_mounts(reason))
		return -1;
	if (mount_proc()) {
		snprintf(reason, REASON_SIZE, "mount the /proc of the pod: %s", strerror(errno));
		return -1;
	}
	if (find_names(pod, reason))
		return -1;
	forks = 1;
	is_script = script;
	held = pod->session;
	return 0;
}

/* reaches_program reports whether Slurm itself delivers a signal to the program. With
 * control groups Slurm signals only its own children; by process group and by descent
 * it finds the program. scancel --batch signals only the process number of the batch
 * script, so its signals are always relayed. Without control groups, a batch script
 * therefore gets signals for all of its processes twice. */
static int reaches_program(void)
{
	return !is_script && &slurm_conf && slurm_conf.proctrack_type && !strstr(slurm_conf.proctrack_type, "cgroup");
}

/* end_like ends this process with the wait status of the program. */
static void end_like(int status)
{
	if (WIFSIGNALED(status)) {
		/* One core file is enough. */
		struct rlimit none = { 0, 0 };
		sigset_t all;
		setrlimit(RLIMIT_CORE, &none);
		signal(WTERMSIG(status), SIG_DFL);
		sigemptyset(&all);
		sigprocmask(SIG_SETMASK, &all, NULL);
		raise(WTERMSIG(status));
		_exit(128 + WTERMSIG(status));
	}
	_exit(WEXITSTATUS(status));
}

/* relay is the parent: it passes signals to the program, and ends as the program does. */
__attribute__((noreturn))
static void relay(pid_t program, const sigset_t *all)
{
	int direct = reaches_program();
	prctl(PR_SET_NAME, "berth-task");
	/* Close all other descriptors: the other end of a pipe must see it close when the
	 * program closes it. */
	if (held >= 0 && dup2(held, 0) == 0)
		syscall(SYS_close_range, 1, ~0U, 0);
	else
		syscall(SYS_close_range, 0, ~0U, 0);
	for (;;) {
		siginfo_t info;
		int status, sig = sigwaitinfo(all, &info);
		if (sig == SIGCHLD) {
			/* A stopped program needs no report: whoever stopped it knows. */
			if (waitpid(program, &status, WNOHANG) == program)
				end_like(status);
		} else if (sig > 0 && info.si_code <= 0 && !direct) {
			/* The kernel sends a terminal's signals to both. */
			kill(program, sig);
		} else if (sig == SIGHUP) {
			/* But only the session's leader learns of the loss of the terminal. */
			kill(program, sig);
		}
	}
}

/* Where the child continues. */
static ucontext_t program_to_be;
/* The stack of the parent. */
static char relay_stack[64 << 10] __attribute__((aligned(16)));
static sigset_t all_signals;
/* The errno of a vfork that failed, or 0. */
static volatile int no_program;

/* divide forks. It runs on its own stack, because vfork shares all memory between the child
 * and the parent, which waits in the kernel until the child has become the program. The
 * child returns to the caller of run_task on the task's stack, and so leaves the stack of
 * the parent as it was. */
static void divide(void)
{
	pid_t program = vfork();
	if (program > 0)
		relay(program, &all_signals);
	no_program = program < 0 ? errno : 0;
	setcontext(&program_to_be);
	_exit(EXIT_FAILURE);
}

/* run_task returns in the child, which Slurm then turns into the program. Copying
 * slurmstepd's memory (fork) was 40 % of the CPU time that a pod added to a step. */
void run_task(void)
{
	sigset_t before;
	ucontext_t aside;
	if (!forks)
		return;
	sigfillset(&all_signals);
	sigprocmask(SIG_SETMASK, &all_signals, &before);
	if (getcontext(&aside)) {
		fprintf(stderr, "berth: start the task in its pod: %s\n", strerror(errno));
		_exit(EXIT_FAILURE);
	}
	aside.uc_stack.ss_sp = relay_stack;
	aside.uc_stack.ss_size = sizeof relay_stack;
	aside.uc_link = NULL;
	makecontext(&aside, divide, 0);
	if (swapcontext(&program_to_be, &aside))
		no_program = errno;
	if (no_program) {
		fprintf(stderr, "berth: start the task in its pod: %s\n", strerror(no_program));
		_exit(EXIT_FAILURE);
	}
	/* If the parent is killed, Slurm believes that the task has ended, so the child must
	 * end, too. getppid returns 0 for the parent, which is outside of this PID
	 * namespace. If it is dead already, the child's new parent is process 1. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != 0)
		_exit(EXIT_FAILURE);
	sigprocmask(SIG_SETMASK, &before, NULL);
}
