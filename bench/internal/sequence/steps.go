package sequence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/bench/internal/record"
)

// Names of the figures of steps.
const (
	stepInside, stepOutside = "step", "step outside"
	// stepTimes is the ratio within a pair: a disturbance of the machine affects both steps.
	stepTimes = "step, times one outside"
)

// steps measures job steps with a short program, alternately in two jobs that it submits.
// One job has the system's network or image, the other does not. The order of the two
// changes from pair to pair.
func steps(ctx context.Context, s Spec) (r Result, err error) {
	pairs, err := strconv.Atoi(s.Parameters["pairs"])
	if err != nil {
		return r, err
	}
	var each [2][]string
	var held []string
	same := []string{}
	defer func() { err = errors.Join(err, release(held)) }()
	for i, options := range [][]string{s.Job, s.Outside} {
		id, wrong := s.hold(ctx, slices.Concat(options, same))
		if id != "" {
			held = append(held, id)
		}
		if wrong != nil {
			return r, wrong
		}
		if i == 0 {
			// Both jobs need the same hosts, because another host may be faster.
			hosts, err := run(ctx, "", "squeue", "--noheader", "--jobs="+id, "--format=%N")
			if err != nil {
				return r, err
			}
			same = append(same, "--nodelist="+strings.TrimSpace(hosts))
		}
		each[i] = slices.Concat([]string{"srun", "--quiet", "--overlap", "--jobid=" + id}, Sized(s.Nodes, s.CPUs))
	}
	each[0] = append(each[0], s.Step...)
	var took [2][]float64
	var times []float64
	// The first step of each job does not count, because its caches are cold.
	for n := range pairs + 1 {
		var pair [2]float64
		for _, i := range []int{n % 2, (n + 1) % 2} {
			began := time.Now()
			if _, err := run(ctx, "", append(slices.Clone(each[i]), strings.Fields(s.Parameters["program"])...)...); err != nil {
				return r, err
			}
			pair[i] = time.Since(began).Seconds()
		}
		if n == 0 {
			continue
		}
		took[0], took[1], times = append(took[0], pair[0]), append(took[1], pair[1]), append(times, pair[0]/pair[1])
	}
	r.Values = append(spread(stepInside, took[0]), spread(stepOutside, took[1])...)
	r.Values = append(r.Values, record.Value{Name: stepTimes, Unit: "times", Better: "lower", Value: median(times)})
	return r, nil
}

// hold submits a job that does nothing, waits until it runs, and returns its ID. After an
// error, it returns the ID too if the job was submitted.
func (s Spec) hold(ctx context.Context, options []string) (id string, err error) {
	// Both jobs share the same cores, if the site allows it. Each gets half of the trial's
	// memory on a host.
	sized := Sized(s.Nodes, s.CPUs)
	if s.MemoryMB > 0 {
		sized = append(sized, "--mem="+strconv.Itoa(s.MemoryMB/2))
	}
	argv := slices.Concat([]string{"sbatch", "--parsable", "--output=/dev/null", "--oversubscribe"}, sized, options, []string{"--wrap=exec sleep infinity"})
	said, err := run(ctx, "", argv...)
	if err != nil {
		return "", err
	}
	id, _, _ = strings.Cut(strings.TrimSpace(said), ";")
	for {
		state, err := run(ctx, "", "squeue", "--noheader", "--jobs="+id, "--states=all", "--format=%T")
		switch state = strings.TrimSpace(state); {
		case err != nil:
			return id, err
		case state == "RUNNING":
			return id, nil
		case state != "PENDING" && state != "CONFIGURING":
			return id, fmt.Errorf("the job %s is %s before its first step", id, state)
		}
		select {
		case <-ctx.Done():
			return id, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// release cancels jobs, and waits until they are gone. An interruption of the bench does not
// end the wait.
func release(ids []string) error {
	if ids == nil {
		return nil
	}
	const limit = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if _, err := run(ctx, "", append([]string{"scancel", "--quiet"}, ids...)...); err != nil {
		return err
	}
	jobs := strings.Join(ids, ",")
	for {
		if left, err := run(ctx, "", "squeue", "--noheader", "--jobs="+jobs, "--format=%A"); err != nil || strings.TrimSpace(left) == "" {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not all of the jobs %s have ended within %s of scancel", jobs, limit)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
