#include "berth.h"

#include <stdlib.h>
#include <string.h>

/* take_choice is called if the user gives the option. */
static int take_choice(int value, const char *text, int remote)
{
	(void)value;
	if (strcmp(text, "no") == 0 || strcmp(text, "yes") == 0)
		return ESPANK_SUCCESS;
	if (!remote)
		slurm_error("berth: --network-pod=%s: write yes or no", text);
	return ESPANK_BAD_ARG;
}

static struct spank_option network_pod = {
	.name = "network-pod",
	.arginfo = "yes|no",
	.usage = "a private network and own processes for the job (yes), where the site allows the choice",
	.has_arg = 1,
	.cb = take_choice,
};

void offer_choice(spank_t spank)
{
	if (spank_option_register(spank, &network_pod) != ESPANK_SUCCESS)
		slurm_error("berth: Slurm does not take the option --network-pod");
}

/* decline_network tells berthd before the first step asks for a network, because the
 * step that Slurm starts first does not know the job's options. */
void decline_network(spank_t spank, const struct settings *s)
{
	uint32_t job;
	uid_t uid;
	char *choice = NULL;
	char reason[REASON_SIZE];
	if (spank_option_getopt(spank, &network_pod, &choice) != ESPANK_SUCCESS || !choice || strcmp(choice, "no") != 0)
		return;
	struct question *q = malloc(sizeof *q);
	if (!q || spank_get_item(spank, S_JOB_ID, &job) || spank_get_item(spank, S_JOB_UID, &uid)) {
		slurm_error("berth: slurmd does not say which job begins");
	} else {
		question_begin(q, "decline");
		q->restart_limit = JOB_RESTART_LIMIT;
		q->answer_limit = JOB_ANSWER_LIMIT;
		question_number(q, "job", job);
		question_number(q, "uid", uid);
		if (ask_berthd(s, q, NULL, reason))
			slurm_error("berth: no network for job %u, as it wants: %s", job, reason);
	}
	free(q);
}
