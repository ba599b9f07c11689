/* The SPANK plugin of the site network. Slurm calls plugin.c, which dispatches to one
 * file for each context:
 *
 *   stepd.c    slurmstepd, as root: enter the job's network
 *   task.c     a task, as root and as the user: enter the pod's PID namespace
 *   image.c    a task: enter the image that the user or the site names
 *   root.c     make an image the root directory
 *   prolog.c   the beginning of a job on a node, as root: does it decline a network?
 *   epilog.c   the end of a job on a node: leave the network
 *   drain.c    take a node out of service where berthd does not run
 *   client.c   requests to berthd
 *
 * For sshd, session.c is a program and pam.c a PAM module, from the same parts.
 *
 * Nothing here ends a daemon of Slurm, or waits without a limit. */
#ifndef BERTH_H
#define BERTH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

enum { MAX_MOUNTS = 16 };

/* settings holds the arguments in plugstack.conf. */
struct settings {
	char socket[100];
	/* The image of steps that name none, or empty, and the paths of the host that are
	 * mounted in it. */
	const char *image;
	const char *mounts[MAX_MOUNTS + 1];
};

/* question holds a message to berthd. */
struct question {
	char text[60 << 10];
	size_t length;
	int overflow;
	/* How long berthd may be away, and how long the answer may take in all, in seconds.
	 * question_begin sets short times. */
	int restart_limit, answer_limit;
};

/* Limits of a job that begins: an upgrade of berthd must not lose it. In all it must be less than
 * UnkillableStepTimeout of slurm.conf, 60 by default: slurmd drains a node where a cancelled step
 * takes longer to end. */
enum { JOB_RESTART_LIMIT = 30, JOB_ANSWER_LIMIT = 50 };

enum { REASON_SIZE = 512, PATH_SIZE = 128 };

void question_begin(struct question *q, const char *verb);
void question_number(struct question *q, const char *name, uint32_t value);
void question_text(struct question *q, const char *name, const char *value);

/* pod holds descriptors of a pod's namespaces, -1 if unknown, and the path of the file that its tasks see as
 * /etc/resolv.conf, empty if they see their host's. */
struct pod {
	int network;
	int processes;
	/* The lock that a session on a login host holds for its duration. */
	int session;
	char resolver[PATH_SIZE];
	/* The pod's IPv4 address, or empty. */
	char address[40];
	/* The image of sessions, empty for the host's files, and the paths of the host
	 * that are mounted in it, separated by colons. */
	char image[1024];
	char mounts[2048];
	/* Whether the job has no network because it declined one. */
	int declined;
	/* Whether a job without a network might get one later, or on other nodes, and whether the
	 * node is ill: berthd does not run there, or reports that. */
	int later, ill;
};

void close_pod(struct pod *p);

/* ask_berthd returns 0, or -1 with the reason. The caller owns the descriptors in the
 * answer; pod may be NULL if none are expected. */
int ask_berthd(const struct settings *s, struct question *q, struct pod *pod, char reason[REASON_SIZE]);

/* drain_node makes Slurm send no more jobs to this node. It returns 0 if the node is drained. */
int drain_node(const struct settings *s, const char *why);

void enter_network(spank_t spank, const struct settings *s);
void enter_pod(void);
void refuse_without_network(void);

int own_mounts(char reason[REASON_SIZE]);
int find_names(const struct pod *pod, char reason[REASON_SIZE]);

/* Files of an image are looked up with the rights of user. */
struct user {
	uid_t uid;
	gid_t gid;
	const gid_t *groups;
	int count;
};

int assemble_root(const struct user *user, const struct settings *s, const char *path, const char *const *mounts, char reason[REASON_SIZE]);
int enter_root(char reason[REASON_SIZE]);

/* complain reports to administrators, or to the user of a session, an error that does not end
 * the program. */
__attribute__((format(printf, 1, 2)))
void complain(const char *format, ...);

void offer_images(spank_t spank);
void prepare_image(spank_t spank, const struct settings *s);
void enter_image(void);

int prepare_task(const struct pod *pod, int script, char reason[REASON_SIZE]);
void run_task(void);
void offer_choice(spank_t spank);
void decline_network(spank_t spank, const struct settings *s);
void leave_network(spank_t spank, const struct settings *s);

#endif
