/* berth-pod is process 1 of a pod: it does nothing but reap orphans, and ends
 * when berthd kills it, whereupon the kernel kills all others. It is a program of
 * its own so that it can be small, and outlive berthd. With an argument it begins by
 * waiting for a byte of berthd's: one that ends before there is a file that leads to
 * the pod leaves nothing that nobody would find. */
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
