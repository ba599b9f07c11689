package queue

import (
	"context"
	"strings"
	"time"

	"berth.dev/berth/internal/job/slurm"
)

// accountingPause is the time between two calls of sacct at a site without accounting.
const accountingPause = 10 * time.Minute

const sacctFormat = "JobID,JobIDRaw,State,ExitCode,Submit,Start,End,Partition,NodeList"

// sacct reads jobs that squeue no longer lists from the accounting. It returns nil if there is
// no accounting or sacct fails.
func (c *Client) sacct(ctx context.Context, ids []string) []listed {
	c.mu.Lock()
	paused := time.Now().Before(c.noAccountingUntil)
	c.mu.Unlock()
	if paused || len(ids) == 0 {
		return nil
	}
	output, err := c.options.Ask(ctx, "sacct", "--noheader", "--allocations", "--parsable2", "--jobs="+strings.Join(ids, ","), "--format="+sacctFormat)
	if err != nil && matches(err.Error(), []string{"accounting storage is disabled", "not found"}) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.noAccountingUntil = time.Now().Add(accountingPause)
	}
	if err != nil {
		return nil
	}
	return parseAccounted(string(output))
}

// parseAccounted parses the output of sacct. It ignores lines with another number of columns.
func parseAccounted(output string) []listed {
	var jobs []listed
	for line := range strings.Lines(output) {
		values := strings.Split(strings.TrimRight(line, "\n"), "|")
		if len(values) != strings.Count(sacctFormat, ",")+1 {
			continue
		}
		job := listed{part: values[0], partition: values[7], nodes: values[8]}
		job.root, _, _ = strings.Cut(values[0], "_")
		job.root, _, _ = strings.Cut(job.root, "+")
		job.isArray = strings.Contains(job.part, "_")
		// A cancelled job has the state "CANCELLED by UID".
		job.state, _, _ = strings.Cut(values[2], " ")
		job.exitCode, job.signal = parseStatus(values[3])
		for i, to := range []*time.Time{&job.submitted, &job.start, &job.end} {
			*to, _ = slurm.ParseTime(values[4+i])
		}
		jobs = append(jobs, job)
	}
	return jobs
}
