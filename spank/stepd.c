#define _GNU_SOURCE
#include "berth.h"

#include <errno.h>
#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The reason why this step has no network, or empty. slurmstepd sets it before it forks the
 * tasks, which inherit it; enter_pod may also set it in a task. */
static char no_network[REASON_SIZE];

/* What the tasks need of the pod: its PID namespace and its resolver, or that the job
 * declined one. */
static struct pod of_tasks = { .network = -1, .processes = -1, .session = -1 };
static int is_script;

/* What has become of the job: it is back in the queue, held, or to start on other nodes. */
static enum { NOTHING, HELD, REQUEUED } became;

/* describe adds data that only the controller has: the nodes, in their order, and the
 * name. It returns 0, or -1 with the reason in no_network. */
static int describe(struct question *q, uint32_t job)
{
	job_info_msg_t *jobs = NULL;
	int rc = -1;
	if (slurm_load_job(&jobs, job, SHOW_DETAIL) != SLURM_SUCCESS || !jobs) {
		snprintf(no_network, sizeof no_network, "ask the controller for the job: %s", slurm_strerror(errno));
		return -1;
	}
	for (uint32_t i = 0; i < jobs->record_count; i++) {
		const slurm_job_info_t *one = &jobs->job_array[i];
		if (one->job_id != job || !one->nodes)
			continue;
		question_text(q, "nodes", one->nodes);
		question_text(q, "name", one->name ? one->name : "");
		rc = 0;
	}
	slurm_free_job_info_msg(jobs);
	if (rc)
		snprintf(no_network, sizeof no_network, "the controller knows no nodes of the job");
	return rc;
}

/* requeue_job puts a batch job without a network back into the queue instead of letting it
 * fail. It is held, unless this node is out of service, so that the job starts on other
 * nodes. Slurm refuses that for other jobs and with --no-requeue. The steps of several nodes
 * may do so; Slurm ignores all but the first. */
static void requeue_job(uint32_t job, int elsewhere)
{
	job_desc_msg_t change;
	char comment[REASON_SIZE + 80];
	/* Only a running job: one that was cancelled meanwhile would come back. */
	if (slurm_requeue(job, JOB_RUNNING | (elsewhere ? 0 : JOB_REQUEUE_HOLD)))
		return;
	became = elsewhere ? REQUEUED : HELD;
	if (elsewhere)
		snprintf(comment, sizeof comment, "berth: started again: no network on a node, which is drained: %s", no_network);
	else
		snprintf(comment, sizeof comment, "berth: no network on a node: %s: then scontrol release %u", no_network, job);
	slurm_init_job_desc_msg(&change);
	change.job_id = job;
	change.admin_comment = comment;
	if (slurm_update_job(&change))
		slurm_error("berth: say why job %u is in the queue again: %s", job, slurm_strerror(errno));
}

static void user_name(struct question *q, uid_t uid)
{
	char buffer[4096];
	struct passwd entry, *found = NULL;
	if (getpwuid_r(uid, &entry, buffer, sizeof buffer, &found) == 0 && found)
		question_text(q, "user", found->pw_name);
}

/* tell_tasks sets variables for programs. The PMIx servers of two nodes would connect
 * to each other by the nodes' names, which resolve to the hosts; with this setting
 * they send through slurmd instead. */
static void tell_tasks(spank_t spank, const struct pod *pod)
{
	if (spank_setenv(spank, "SLURM_PMIX_DIRECT_CONN", "false", 1) != ESPANK_SUCCESS ||
	    spank_setenv(spank, "BERTH_POD_ADDRESS", pod->address, 1) != ESPANK_SUCCESS)
		slurm_error("berth: Slurm does not take variables for the tasks");
}

static int fetch_network(spank_t spank, const struct settings *s, struct question *q)
{
	uint32_t job, step, index;
	uid_t uid;
	if (spank_get_item(spank, S_JOB_ID, &job) || spank_get_item(spank, S_JOB_STEPID, &step) ||
	    spank_get_item(spank, S_JOB_UID, &uid) || spank_get_item(spank, S_JOB_NODEID, &index)) {
		snprintf(no_network, sizeof no_network, "slurmstepd does not say which job this is");
		return -1;
	}
	is_script = step == SLURM_BATCH_SCRIPT;
	question_begin(q, "attach");
	q->restart_limit = JOB_RESTART_LIMIT;
	q->answer_limit = JOB_ANSWER_LIMIT;
	question_number(q, "job", job);
	question_number(q, "uid", uid);
	user_name(q, uid);
	/* slurmd starts other steps when the extern step on this node has been answered. So it
	 * has already waited for the job's first node. */
	if (step != SLURM_EXTERN_CONT && !is_script)
		question_text(q, "waited", "yes");
	/* The extern step, which Slurm starts on all nodes of a job before any other
	 * step, sends the nodes, and so does the batch script. A requeued job that starts
	 * again within two minutes has no extern step, because slurmd still remembers the
	 * first one. In other steps, node 0 may not be the job's first node. */
	if (step == SLURM_EXTERN_CONT && index == 0 && describe(q, job))
		return -1;
	/* If the extern step has sent them, the batch script does not need to. */
	if (is_script && describe(q, job))
		no_network[0] = '\0';
	struct pod pod;
	if (ask_berthd(s, q, &pod, no_network)) {
		int elsewhere = pod.ill && drain_node(s, no_network) == 0;
		/* Other steps may belong to an srun that reports the failure. */
		if (pod.later && (is_script || step == SLURM_EXTERN_CONT))
			requeue_job(job, elsewhere);
		return -1;
	}
	if (pod.declined) {
		of_tasks.declined = 1;
		return 0;
	}
	if (pod.network < 0) {
		snprintf(no_network, sizeof no_network, "berthd has sent no network");
		return -1;
	}
	int rc = setns(pod.network, CLONE_NEWNET);
	if (rc) {
		snprintf(no_network, sizeof no_network, "enter the network: %s", strerror(errno));
	} else {
		tell_tasks(spank, &pod);
		of_tasks = pod;
		of_tasks.network = -1;
		pod.processes = -1;
	}
	close_pod(&pod);
	return rc;
}

/* enter_network moves slurmstepd itself, before it starts threads or tasks, because
 * its PMI server and its X11 tunnel must be in the network of the tasks. It stores a
 * failure for the tasks, whose stderr the user sees; here it would only reach
 * slurmd's log. */
void enter_network(spank_t spank, const struct settings *s)
{
	struct question *q = malloc(sizeof *q);
	if (!q)
		snprintf(no_network, sizeof no_network, "no memory");
	else if (fetch_network(spank, s, q) && !no_network[0])
		snprintf(no_network, sizeof no_network, "for an unknown reason");
	free(q);
	if (no_network[0])
		slurm_error("berth: no network for this step: %s", no_network);
}

/* enter_pod is called in each task, as root. */
void enter_pod(void)
{
	if (!no_network[0] && !of_tasks.declined)
		prepare_task(&of_tasks, is_script, no_network);
}

/* refuse_without_network is called in each task before its program, when stderr is
 * the user's. It ends a task without a network here: Slurm ignores the result of an
 * optional plugin, and the task would run in the host's network. */
void refuse_without_network(void)
{
	if (!no_network[0])
		return;
	fprintf(stderr, "berth: this job has no network: %s\nberth: tell the administrators of this cluster\n", no_network);
	if (became == REQUEUED)
		fprintf(stderr, "berth: the job is in the queue again, and starts on other nodes\n");
	if (became == HELD)
		fprintf(stderr, "berth: the job is in the queue again, held: scontrol release it when they have mended that\n");
	_exit(EXIT_FAILURE);
}
