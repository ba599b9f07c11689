/* A target of libFuzzer that feeds converse an answer of berthd. The first byte of the input
 * selects the number of descriptors that come with each piece of the answer, and the second
 * byte the length of the pieces. No input may cause a crash, a read beyond the end of a
 * buffer, or a descriptor that stays open. */
#include "client.c"

#include <fcntl.h>
#include <stdlib.h>

/* open_descriptors returns a bit for each of the first 64 descriptors. */
static uint64_t open_descriptors(void)
{
	uint64_t all = 0;
	for (int c = 0; c < 64; c++)
		if (fcntl(c, F_GETFD) >= 0)
			all |= UINT64_C(1) << c;
	return all;
}

static void send_piece(int c, const uint8_t *data, size_t length, int descriptors)
{
	enum { MOST = 7 };
	int sent[MOST];
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof sent)] = { 0 };
	struct iovec part = { .iov_base = (void *)data, .iov_len = length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	for (int i = 0; i < MOST; i++)
		sent[i] = STDIN_FILENO;
	if (descriptors > 0) {
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(descriptors * sizeof *sent);
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(descriptors * sizeof *sent);
		memcpy(CMSG_DATA(header), sent, descriptors * sizeof *sent);
	}
	if (sendmsg(c, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 3)
		return 0;
	int descriptors = data[0] % 8, piece = data[1] + 1, ends[2];
	data += 2;
	size -= 2;
	uint64_t before = open_descriptors();
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		abort();
	for (size_t at = 0; at < size; at += piece)
		send_piece(ends[1], data + at, size - at < (size_t)piece ? size - at : (size_t)piece, descriptors);
	shutdown(ends[1], SHUT_WR);

	static struct question q;
	char reason[REASON_SIZE];
	struct pod pod = { .network = -1, .processes = -1, .session = -1 };
	question_begin(&q, "attach");
	question_text(&q, "name", "a job");
	int again, rc = converse(ends[0], &q, &pod, &again, reason);
	/* Every string ends. */
	if (rc)
		strlen(reason);
	else
		strlen(pod.resolver), strlen(pod.address), strlen(pod.image), strlen(pod.mounts);
	close_pod(&pod);
	close(ends[0]);
	close(ends[1]);
	if (open_descriptors() != before)
		abort();
	return 0;
}
