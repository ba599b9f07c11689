// Package campaign runs a plan: it prepares the systems, runs the trials in the plan's
// order, and writes their records. A system that fails does not stop the others.
package campaign

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/bench/internal/cases"
	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/registry"
	"berth.dev/berth/bench/internal/system"
)

// inARow is the number of consecutive failures after which a case is skipped on a system.
const inARow = 2

// Campaign is one execution of a plan.
type Campaign struct {
	Plan    *plan.Plan
	Place   system.Place
	Records *record.Writer
	// Before holds the existing records.
	Before   []record.Line
	Progress io.Writer
	// New makes the driver of a system.
	New func(plan.System, system.Place) (system.Driver, error)

	drivers map[string]system.Driver
	// gone holds the systems, and the cases on systems, that are not measured.
	gone map[pair]bool
	// failed counts the consecutive failures of each case on each system.
	failed map[pair]int
	clock  clock
	// skipped counts the trials that gone has excluded.
	skipped int
}

// pair is a case on a system; an empty case stands for all cases.
type pair struct{ system, caseName string }

// Known returns the names that plans can use.
func Known() plan.Catalogue { return plan.Catalogue{Cases: cases.Kinds(), Drivers: system.Kinds()} }

// Run runs the trials that have no record yet, and adds their records. It returns an error
// if the run cannot begin or continue; the failure of a trial is only recorded.
func (c *Campaign) Run(ctx context.Context) (err error) {
	c.gone, c.failed = map[pair]bool{}, map[pair]int{}
	c.clock = newClock(c.Plan, Known(), c.Before)
	left := plan.Remaining(c.Plan.Schedule(), c.Before)
	// Even if the session does not begin, prepared systems must be cleaned up.
	defer func() { err = errors.Join(err, c.close(context.WithoutCancel(ctx))) }()
	if err := c.begin(ctx, left); err != nil {
		return err
	}
	for i := 0; i < len(left); {
		n := c.sameTurn(left[i:])
		var some []record.ID
		for j, id := range left[i : i+n] {
			if c.isGone(id) {
				c.skipped++
				continue
			}
			fmt.Fprintf(c.Progress, "%d/%d %s on %s (%s %d), %s left\n", i+j+1, len(left), id.Case, id.System, id.Phase, id.Number,
				round(c.clock.of(left[i+j:], c.isGone)))
			some = append(some, id)
		}
		i += n
		if err := c.trials(ctx, some); err != nil {
			return err
		}
	}
	fmt.Fprintf(c.Progress, "%d trials made, %d left out\n", len(left)-c.skipped, c.skipped)
	return nil
}

func (c *Campaign) isGone(id record.ID) bool {
	return c.gone[pair{id.System, ""}] || c.gone[pair{id.System, id.Case}]
}

// sameTurn returns how many of the next trials a system runs together: the
// trials of one round, if the plan and the system support it.
func (c *Campaign) sameTurn(next []record.ID) int {
	first := next[0]
	if _, can := c.drivers[first.System].(system.Together); !can || !c.Plan.Together {
		return 1
	}
	n := slices.IndexFunc(next, func(id record.ID) bool {
		return id.System != first.System || id.Phase != first.Phase || id.Number != first.Number
	})
	if n < 0 {
		n = len(next)
	}
	return n
}

// begin prepares the systems with remaining trials and writes the record of the
// session.
func (c *Campaign) begin(ctx context.Context, left []record.ID) error {
	session := &record.Session{
		Plan: c.Plan.Text, Name: c.Plan.Name, Title: c.Plan.Title, Seed: c.Plan.Seed,
		Reference: c.Plan.Reference, Drift: c.Plan.Baseline.Drift, Versions: map[string]string{},
		Before: strings.Join(c.Place.Before, " "),
	}
	c.drivers = map[string]system.Driver{}
	var unmeasured []*record.Unmeasured
	for _, s := range c.Plan.Systems {
		if !slices.ContainsFunc(left, func(id record.ID) bool { return id.System == s.Name }) {
			continue
		}
		driver, err := c.New(s, c.Place)
		if err != nil {
			return err
		}
		versions, err := driver.Check(ctx)
		if err == nil {
			maps.Copy(session.Versions, versions)
			err = driver.Prepare(ctx)
			c.drivers[s.Name] = driver
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			unmeasured = append(unmeasured, &record.Unmeasured{System: s.Name, Reason: err.Error()})
		}
	}
	if digest := registry.Digest(c.Place.Images); digest != "" {
		session.Versions["images"] = digest
	}
	if err := archives(session.Versions, c.Place); err != nil {
		return err
	}
	if err := sameVersions(session.Versions, c.Before); err != nil {
		return err
	}
	machines, err := c.Place.Machines(ctx)
	if err != nil {
		return err
	}
	if err := sameMachines(machines, c.Before); err != nil {
		return err
	}
	session.Nodes, session.Slurm = machines, slurm(os.Getenv)
	if c.Plan.Link != "" {
		link := c.Plan.Links[c.Plan.Link]
		session.Link = &record.Link{Name: c.Plan.Link, Is: link.String()}
		if session.Link.Wanted, err = link.Wanted(); err != nil {
			return err
		}
	}
	if err := c.Records.Add(record.Line{Session: session}); err != nil {
		return err
	}
	for _, u := range unmeasured {
		if err := c.leave(*u); err != nil {
			return err
		}
	}
	return nil
}

// archives adds the digests of the image archives to the versions, because the archive
// determines which fio or OpenMPI a trial has. It ignores a missing archive; systems
// that need it report that.
func archives(versions map[string]string, place system.Place) error {
	for name, path := range map[string]string{"image of programs": place.Archive, "image with MPI": place.MPIArchive} {
		archive, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open %s: %w", name, err)
		}
		sum := sha256.New()
		_, err = io.Copy(sum, archive)
		if err := errors.Join(err, archive.Close()); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		const few = 8 // bytes
		versions[name] = fmt.Sprintf("sha256:%x", sum.Sum(nil)[:few])
	}
	return nil
}

// sameVersions refuses to continue with other program versions than the
// records', because a row would mix both.
func sameVersions(now map[string]string, before []record.Line) error {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(now)) {
		for _, line := range before {
			if s := line.Session; s != nil && s.Versions[name] != "" && s.Versions[name] != now[name] {
				problems = append(problems, fmt.Errorf("the file has records of %s %s, and this is %s: give another file with --out", name, s.Versions[name], now[name]))
				break
			}
		}
	}
	return errors.Join(problems...)
}

// sameMachines refuses to continue with other kinds of hosts than the records',
// because no report could mix both.
func sameMachines(now []record.Machine, before []record.Line) error {
	for _, line := range before {
		if s := line.Session; s != nil && !record.SameMachines(s.Nodes, now) {
			return fmt.Errorf("the file has records of other hosts (%s), and these are %s: ask for such hosts, or give another file with --out", record.Kinds(s.Nodes), record.Kinds(now))
		}
	}
	return nil
}

// slurm returns the Slurm job of this process, or nil outside a job.
func slurm(getenv func(string) string) *record.Slurm {
	if getenv("SLURM_JOB_ID") == "" {
		return nil
	}
	return &record.Slurm{
		Job: getenv("SLURM_JOB_ID"), Cluster: getenv("SLURM_CLUSTER_NAME"),
		Partition: getenv("SLURM_JOB_PARTITION"), NodeList: getenv("SLURM_JOB_NODELIST"),
	}
}

func (c *Campaign) close(ctx context.Context) error {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(c.drivers)) {
		if err := c.drivers[name].Close(ctx); err != nil {
			problems = append(problems, fmt.Errorf("tidy up after %s: %w", name, err))
		}
	}
	return errors.Join(problems...)
}

// leave excludes a system, or a case on a system, from the rest of the run, and records the
// reason.
func (c *Campaign) leave(u record.Unmeasured) error {
	c.gone[pair{u.System, u.Case}] = true
	of := u.Case
	if of == "" {
		of = "all cases"
	}
	fmt.Fprintf(c.Progress, "not measured: %s on %s: %s\n", of, u.System, u.Reason)
	return c.Records.Add(record.Line{Unmeasured: &u})
}

// made is a trial whose record is not written yet, with the case that it measures.
type made struct {
	measured cases.Case
	trial    record.Trial
}

// trials makes trials of one system, together if there are several, and writes
// their records.
func (c *Campaign) trials(ctx context.Context, ids []record.ID) error {
	var all []made
	var tasks []system.Task
	for _, id := range ids {
		planned, _ := c.Plan.Case(id.Case)
		measured, ok := cases.Find(planned.Kind)
		if !ok {
			return fmt.Errorf("there is no case %q", planned.Kind)
		}
		task, err := measured.Task(planned.Parameters, c.Plan.CPUs, c.Plan.MemoryMB)
		if err != nil {
			if err := c.leave(record.Unmeasured{System: id.System, Case: id.Case, Reason: err.Error()}); err != nil {
				return err
			}
			continue
		}
		task.CPUs, task.MemoryMB = c.Plan.CPUs, c.Plan.MemoryMB
		tasks = append(tasks, task)
		all = append(all, made{measured, record.Trial{
			Case: id.Case, Kind: planned.Kind, System: id.System, Against: planned.Against, Phase: id.Phase, Number: id.Number,
			Parameters: planned.Parameters, Start: time.Now().UTC(),
		}})
	}
	if len(all) == 0 {
		return nil
	}
	var results []system.Result
	driver := c.drivers[all[0].trial.System]
	if together, can := driver.(system.Together); can && c.Plan.Together {
		results = together.RunTogether(ctx, tasks)
	} else {
		out, err := driver.Run(ctx, tasks[0])
		results = []system.Result{{Output: out, Err: err}}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // these trials run again
	}
	// Trials that share a cluster share its time and cost equally.
	shared, took := 0, time.Since(all[0].trial.Start)
	for _, r := range results {
		if took -= r.Took; r.Took == 0 {
			shared++
		}
	}
	// Successful trials first: a failed one may reveal that the job has ended.
	for _, failed := range []bool{false, true} {
		for i, m := range all {
			if (results[i].Err != nil) != failed {
				continue
			}
			switch r := results[i]; {
			case r.Took != 0:
				m.trial.Start, m.trial.Seconds = r.Start.UTC(), r.Took.Seconds()
			default:
				m.trial.Seconds = took.Seconds() / float64(shared)
				if shared > 1 {
					m.trial.Together = shared
				}
			}
			if err := c.finish(ctx, m, results[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish writes the record of a trial, including the trial's own error. An error that
// finish returns ends the campaign.
func (c *Campaign) finish(ctx context.Context, m made, r system.Result) error {
	trial, out, err := m.trial, r.Output, r.Err
	if unsupported, ok := errors.AsType[*system.Unsupported](err); ok {
		return c.leave(record.Unmeasured{System: trial.System, Case: trial.Case, Reason: unsupported.Reason})
	}
	trial.Step, trial.Output = out.Step, out.Stdout
	if err == nil {
		trial.Values, err = m.measured.Read(trial.Parameters, out)
	}
	if err == nil {
		trial.Values = append(trial.Values, out.Values...)
	}
	at := pair{trial.System, trial.Case}
	if err != nil {
		// If the job has ended, the system is not at fault: the trial runs again.
		if lost := c.Place.Lost(ctx); lost != nil {
			return lost
		}
		trial.Error = err.Error()
		c.failed[at]++
		fmt.Fprintf(c.Progress, "failed: %s: %v\n", trial.Case, err)
	} else {
		c.failed[at] = 0
		c.clock.took(trial.ID(), trial.Seconds)
	}
	if err := c.Records.Add(record.Line{Trial: &trial}); err != nil {
		return err
	}
	if c.failed[at] == inARow {
		return c.leave(record.Unmeasured{System: trial.System, Case: trial.Case, Reason: fmt.Sprintf("it failed %d times in a row, last: %s", inARow, trial.Error)})
	}
	return nil
}
