/* berth-pod is process 1 of a pod. It only reaps orphans, until berthd kills it and
 * the kernel then kills all other processes of the pod. It is a separate program to
 * be small and to outlive berthd. With an argument it first waits for a byte from
 * berthd: if berthd ends before it has bound the pod to a file, no process is left
 * behind. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	(void)argv;
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	char begin;
	if (argc > 1 && read(STDIN_FILENO, &begin, 1) != 1)
		return 1;
	for (int fd = 0; fd < 64; fd++)
		close(fd);
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	for (;;) {
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		sigwaitinfo(&child, NULL);
	}
}
