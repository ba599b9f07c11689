package queue

import (
	"context"
	"strings"
	"time"

	"berth.dev/berth/internal/job/slurm"
)

// accountingPause is the interval between calls of sacct at a site that has no
// accounting.
const accountingPause = 10 * time.Minute

const sacctFormat = "JobID,JobIDRaw,State,ExitCode,Submit,Start,End,Partition,NodeList"

// sacct asks the accounting for jobs that squeue does not know any more.
func (c *Client) sacct(ctx context.Context, ids []string) []listed {
	c.mu.Lock()
	paused := time.Now().Before(c.noAccounting)
	c.mu.Unlock()
	if paused || len(ids) == 0 {
		return nil
	}
	output, err := c.options.Ask(ctx, "sacct", "--noheader", "--allocations", "--parsable2", "--jobs="+strings.Join(ids, ","), "--format="+sacctFormat)
	if err != nil && matches(err.Error(), []string{"accounting storage is disabled", "not found"}) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.noAccounting = time.Now().Add(accountingPause)
	}
	if err != nil {
		return nil
	}
	return parseAccounted(string(output))
}

// parseAccounted parses the output of sacct and omits lines that it cannot read.
func parseAccounted(output string) []listed {
	var jobs []listed
	for line := range strings.Lines(output) {
		values := strings.Split(strings.TrimRight(line, "\n"), "|")
		if len(values) != strings.Count(sacctFormat, ",")+1 {
			continue
		}
		job := listed{part: values[0], partition: values[7], nodes: values[8]}
		job.root, _, _ = strings.Cut(values[0], "_")
		job.root, _, job.isHeterogeneous = strings.Cut(job.root, "+")
		job.isArray = strings.Contains(job.part, "_")
		// CANCELLED by 1000
		job.state, _, _ = strings.Cut(values[2], " ")
		job.code, job.signal = parseStatus(values[3])
		for i, to := range []*time.Time{&job.submitted, &job.start, &job.end} {
			*to, _ = slurm.ParseTime(values[4+i])
		}
		jobs = append(jobs, job)
	}
	return jobs
}
