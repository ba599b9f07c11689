#define _GNU_SOURCE
#include "berth.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* The longest time, in seconds, that a caller waits for berthd in all, unless it sets
 * another one. */
enum { ANSWER_LIMIT = 20 };

/* The longest time, in seconds, that berthd may be down, unless the caller waits longer:
 * it is replaced under running jobs. */
enum { RESTART_LIMIT = 3 };

/* berthd answers so many seconds before the caller gives up, so that the error comes from
 * berthd, which knows the reason. */
enum { ANSWER_MARGIN = 2 };

__attribute__((format(printf, 2, 3)))
static void append(struct question *q, const char *format, ...)
{
	size_t room = sizeof q->text - q->length;
	va_list args;
	va_start(args, format);
	int n = vsnprintf(q->text + q->length, room, format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= room)
		q->overflow = 1;
	else
		q->length += n;
}

void question_begin(struct question *q, const char *verb)
{
	q->length = 0;
	q->overflow = 0;
	q->restart_limit = RESTART_LIMIT;
	q->answer_limit = ANSWER_LIMIT;
	append(q, "berthd/1 %s\n", verb);
}

void question_number(struct question *q, const char *name, uint32_t value)
{
	append(q, "%s %u\n", name, value);
}

/* A user chooses the name of a job: a line break in it must not begin another
 * field. */
void question_text(struct question *q, const char *name, const char *value)
{
	append(q, "%s ", name);
	size_t start = q->length;
	append(q, "%s", value);
	for (size_t i = start; i < q->length; i++)
		if ((unsigned char)q->text[i] < ' ' || q->text[i] == 0x7f)
			q->text[i] = ' ';
	append(q, "\n");
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* dial returns a connection to berthd that gives up after so many seconds without an answer,
 * or -1 with the reason and in again whether berthd may only be starting. */
static int dial(const struct settings *s, int limit, int *again, char reason[REASON_SIZE])
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	strncpy(address.sun_path, s->socket, sizeof address.sun_path - 1);
	int c = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c < 0) {
		snprintf(reason, REASON_SIZE, "make a socket: %s", strerror(errno));
		return -1;
	}
	struct timeval most = { .tv_sec = limit };
	if (setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) ||
	    setsockopt(c, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most) ||
	    connect(c, (const struct sockaddr *)&address, sizeof address)) {
		*again = errno == ECONNREFUSED || errno == ENOENT;
		snprintf(reason, REASON_SIZE, "berthd does not answer at %s: %s", s->socket, strerror(errno));
		close(c);
		return -1;
	}
	return c;
}

void close_pod(struct pod *p)
{
	if (p->network >= 0)
		close(p->network);
	if (p->processes >= 0)
		close(p->processes);
	if (p->session >= 0)
		close(p->session);
	p->network = p->processes = p->session = -1;
}

/* receive reads once, and stores the descriptors that the message carries in pod. It
 * returns what recvmsg returned. */
static ssize_t receive(int c, char *to, size_t room, struct pod *pod)
{
	enum { MOST = 3 };
	int sent[MOST] = { -1, -1, -1 };
	/* The alignment leaves room for one more descriptor, which the kernel uses. */
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof sent)];
	struct iovec part = { .iov_base = to, .iov_len = room };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	ssize_t n;
	do
		n = recvmsg(c, &message, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return n;
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	if (!header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
		return n;
	int count = (header->cmsg_len - CMSG_LEN(0)) / sizeof *sent;
	if (count < 2 || count > MOST) {
		for (int i = 0; i < count; i++) {
			int extra;
			memcpy(&extra, CMSG_DATA(header) + i * sizeof extra, sizeof extra);
			close(extra);
		}
		return n;
	}
	close_pod(pod);
	memcpy(sent, CMSG_DATA(header), count * sizeof *sent);
	pod->network = sent[0];
	pod->processes = sent[1];
	pod->session = sent[2];
	return n;
}

/* field copies the value of a line of an answer, and reports whether the line exists
 * and fits. */
static int field(const char *answer, const char *name, char *to, size_t room)
{
	char begin[32];
	snprintf(begin, sizeof begin, "\n%s ", name);
	const char *line = strstr(answer, begin);
	if (!line)
		return 0;
	line += strlen(begin);
	return (size_t)snprintf(to, room, "%.*s", (int)strcspn(line, "\n"), line) < room;
}

/* understand parses an answer. It returns 0 if berthd did what was asked, or -1 with the
 * reason why not. */
static int understand(const char *answer, struct pod *pod, char reason[REASON_SIZE])
{
	static const char ok[] = "berthd/1 ok\n", wrong[] = "berthd/1 error\n";
	if (strncmp(answer, ok, sizeof ok - 1) == 0) {
		if (!field(answer, "resolver", pod->resolver, sizeof pod->resolver))
			pod->resolver[0] = '\0';
		if (!field(answer, "address", pod->address, sizeof pod->address))
			pod->address[0] = '\0';
		if (!field(answer, "image", pod->image, sizeof pod->image))
			pod->image[0] = '\0';
		if (!field(answer, "mounts", pod->mounts, sizeof pod->mounts))
			pod->mounts[0] = '\0';
		char yes[4];
		pod->declined = field(answer, "declined", yes, sizeof yes);
		return 0;
	}
	char yes[4];
	pod->later = field(answer, "later", yes, sizeof yes);
	pod->ill = field(answer, "ill", yes, sizeof yes);
	reason[0] = '\0';
	if (strncmp(answer, wrong, sizeof wrong - 1) == 0)
		field(answer, "reason", reason, REASON_SIZE);
	if (!reason[0])
		snprintf(reason, REASON_SIZE, "berthd's answer is not understood: are berthd and the plugin of the same version?");
	return -1;
}

/* converse sends a question and reads the answer. It returns 0, or -1 with the reason, and
 * in again whether berthd has ended before it answered. The caller owns the descriptors in
 * pod in all cases. */
static int converse(int c, const struct question *q, struct pod *pod, int *again, char reason[REASON_SIZE])
{
	for (size_t sent = 0; sent < q->length;) {
		ssize_t n = send(c, q->text + sent, q->length - sent, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			*again = errno == EPIPE || errno == ECONNRESET;
			snprintf(reason, REASON_SIZE, "ask berthd: %s", strerror(errno));
			return -1;
		}
		sent += n;
	}
	char answer[4096];
	size_t length = 0;
	do {
		ssize_t n = receive(c, answer + length, sizeof answer - 1 - length, pod);
		if (n <= 0) {
			*again = n == 0 || errno == ECONNRESET;
			snprintf(reason, REASON_SIZE, "berthd has not answered: %s", n < 0 ? strerror(errno) : "it closed the connection");
			return -1;
		}
		length += n;
		answer[length] = '\0';
	} while (length < sizeof answer - 1 && (length < 2 || strcmp(answer + length - 2, "\n\n") != 0));
	return understand(answer, pod, reason);
}

/* ask_once asks with so many seconds left. It returns 0, or -1 with the reason, and in again
 * whether it is worth asking again. The text of the question stays as it was. */
static int ask_once(const struct settings *s, struct question *q, int left, struct pod *pod, int *again, char reason[REASON_SIZE])
{
	size_t length = q->length;
	/* Without an answer, berthd may give one later. */
	pod->later = 1;
	int rc = -1, c = dial(s, left, again, reason);
	if (c < 0) {
		pod->ill = *again;
		return -1;
	}
	/* berthd must answer before this side gives up. */
	question_number(q, "limit", left > ANSWER_MARGIN ? left - ANSWER_MARGIN : 1);
	append(q, "\n");
	if (q->overflow) {
		pod->later = 0;
		snprintf(reason, REASON_SIZE, "the list of the job's nodes is too long");
	} else
		rc = converse(c, q, pod, again, reason);
	close(c);
	q->length = length;
	return rc;
}

int ask_berthd(const struct settings *s, struct question *q, struct pod *pod, char reason[REASON_SIZE])
{
	const struct timespec pause = { .tv_nsec = 100000000 };
	const double began = now();
	struct pod received;
	int rc;
	for (;;) {
		int again = 0;
		received = (struct pod){ .network = -1, .processes = -1, .session = -1 };
		rc = ask_once(s, q, q->answer_limit - (int)(now() - began), &received, &again, reason);
		if (rc == 0 || !again || now() - began >= q->restart_limit)
			break;
		/* berthd is replaced under running jobs, also while it serves a request. */
		close_pod(&received);
		nanosleep(&pause, NULL);
	}
	if (rc || !pod)
		close_pod(&received);
	if (pod)
		*pod = received;
	return rc;
}
