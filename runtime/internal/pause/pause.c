/* pause holds a pod's namespaces: it sleeps, and reaps orphans that a shared
 * PID namespace gives it. Only SIGKILL ends it, and containerd sends that.
 * Other signals reach every process of a job at once, but the containers of a
 * pod need its namespaces to end in order.
 *
 * It is linked without a C library, so that a pod costs some ten kilobytes
 * here instead of a megabyte. Signals are taken one by one with
 * rt_sigtimedwait rather than by handlers: the kernel drops a signal to PID 1
 * that has neither a handler nor is blocked. */

#define SIGSET_BYTES 8
#define WNOHANG 1

#if defined(__x86_64__)
enum { SYS_wait4 = 61, SYS_sigprocmask = 14, SYS_sigtimedwait = 128 };

static long call(long n, long a, long b, long c, long d)
{
	long result;
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
enum { SYS_wait4 = 260, SYS_sigprocmask = 135, SYS_sigtimedwait = 137 };

static long call(long n, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}
#else
#error "no system calls known for this architecture"
#endif

void _start(void)
{
	unsigned long all = ~0UL;

	call(SYS_sigprocmask, 0 /* SIG_BLOCK */, (long)&all, 0, SIGSET_BYTES);
	for (;;) {
		call(SYS_sigtimedwait, (long)&all, 0, 0, SIGSET_BYTES);
		/* Signals of one number are not queued: one SIGCHLD may stand
		 * for many children. */
		while (call(SYS_wait4, -1, 0, WNOHANG, 0) > 0)
			;
	}
}
