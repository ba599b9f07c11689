#include "berth.h"

#include <stdlib.h>

/* leave_network is called when all steps of the job have ended on this node. If it
 * fails, berthd releases the network later: it asks the controller which jobs exist. */
void leave_network(spank_t spank, const struct settings *s)
{
	uint32_t job;
	char reason[REASON_SIZE];
	struct question *q = malloc(sizeof *q);
	if (!q || spank_get_item(spank, S_JOB_ID, &job)) {
		slurm_error("berth: slurmd does not say which job has ended");
	} else {
		question_begin(q, "release");
		question_number(q, "job", job);
		if (ask_berthd(s, q, NULL, reason))
			slurm_error("berth: release the network of job %u: %s", job, reason);
	}
	free(q);
}
