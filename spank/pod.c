/* berth-pod is process 1 of a pod: it does nothing but reap orphans, and ends
 * when berthd kills it, whereupon the kernel kills all others. It is a program of
 * its own so that it can be small, and outlive berthd. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
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
