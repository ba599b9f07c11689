package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

// site is a fake Slurm that answers commands from memory.
type site struct {
	// rows holds the lines of squeue, with the columns of fields.
	rows [][]string
	// accounting is the output of sacct, or its error.
	accounting any
	// unable is the error of commands that change jobs.
	unable error
	// down makes every command fail. asked holds the commands, in order.
	down  bool
	asked []string
}

func (s *site) ask(_ context.Context, command ...string) ([]byte, error) {
	s.asked = append(s.asked, command[0])
	if s.down {
		return nil, fmt.Errorf("run %s: exit status 1: slurm_load_jobs error: Unable to contact slurm controller (connect failure)", strings.Join(command, " "))
	}
	switch command[0] {
	case "squeue":
		format, _ := strings.CutPrefix(command[len(command)-1], "--Format=")
		_, separator, _ := strings.Cut(format, "|")
		separator, _, _ = strings.Cut(separator, "|")
		separator = "|" + separator + "|"
		var b strings.Builder
		for _, row := range s.rows {
			b.WriteString(strings.Join(row, separator) + separator + "\n")
		}
		return []byte(b.String()), nil
	case "sacct":
		if err, ok := s.accounting.(error); ok {
			return nil, err
		}
		text, _ := s.accounting.(string)
		return []byte(text), nil
	}
	s.asked[len(s.asked)-1] = strings.Join(command, " ")
	return nil, s.unable
}

// row returns the columns of a line of squeue.
func row(id, part, state, reason, status, comment, command string) []string {
	root, _, _ := strings.Cut(part, "_")
	return []string{id, part, root, "N/A", state, reason, "main", "", status, "2026-11-28T13:00:00", "2026-11-28T13:01:00", "2026-11-28T13:02:00", "0", "name", "/out", comment, command}
}

func newClient(t *testing.T, s *site) *Client {
	t.Helper()
	options := Default(t.TempDir(), slog.New(slog.DiscardHandler))
	options.Ask, options.Interval = s.ask, 0
	client, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// states calls States and fails the test on an error.
func (s *site) states(t *testing.T, c *Client, jobs map[string]string) map[string]State {
	t.Helper()
	states, err := c.States(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	return states
}

func TestStateOfPartsTogether(t *testing.T) {
	s := &site{}
	c := newClient(t, s)
	for _, step := range []struct {
		rows          [][]string
		state, reason string
		code          int
	}{
		{[][]string{row("5", "5_[2-3]", "PENDING", "Resources", "0", "", ""), row("6", "5_1", "RUNNING", "None", "0", "", "")}, "RUNNING", "1 pending, 1 running", 0},
		{[][]string{row("6", "5_1", "FAILED", "NonZeroExitCode", "512", "", ""), row("7", "5_2", "RUNNING", "None", "0", "", ""), row("5", "5_3", "RUNNING", "None", "0", "", "")}, "RUNNING", "1 failed, 2 running", 0},
		// Slurm has forgotten the first element.
		{[][]string{row("7", "5_2", "COMPLETED", "None", "0", "", ""), row("5", "5_3", "COMPLETED", "None", "0", "", "")}, "FAILED", "2 completed, 1 failed", 2},
	} {
		s.rows = step.rows
		got := s.states(t, c, map[string]string{"u": "5"})["u"]
		if got.State != step.state || got.Reason != step.reason || got.ExitCode != step.code {
			t.Errorf("%+v, want %+v", got, step)
		}
	}
}

// Slurm forgets ended elements of an array while others still run, also when no process of
// berth looks.
func TestArrayWithForgottenElements(t *testing.T) {
	disabled := errors.New("run sacct: exit status 1: Slurm accounting storage is disabled")
	const accounted = "5_1|6|%s|0:0|2026-11-28T13:00:00|2026-11-28T13:01:00|2026-11-28T13:02:00|main|n1\n5_2|7|COMPLETED|0:0||||main|n1\n6_9|6|FAILED|0:0||||main|n1\n"
	for _, test := range []struct {
		name          string
		accounting    any
		end           string
		state, reason string
		code          int
	}{
		{"accounting", fmt.Sprintf(accounted, "TIMEOUT"), "", "TIMEOUT", "1 completed, 1 timeout", 0},
		{"success in accounting", fmt.Sprintf(accounted, "COMPLETED"), "0 1010\n", "COMPLETED", "2 completed", 0},
		{"record of failure", disabled, "3 1010\n", "FAILED", "1 completed, 1 failed", 3},
		{"record of success", disabled, "0 1010\n", "COMPLETED", "2 completed", 0},
		{"killed", disabled, "", "FAILED", "1 completed, 1 failed", 0},
	} {
		s := &site{accounting: test.accounting}
		c := newClient(t, s)
		folder := Folder(c.options.State, "u")
		for _, err := range []error{
			os.MkdirAll(folder, 0o700), os.Symlink("5", filepath.Join(folder, OwnerName+".1")), os.Symlink("5", filepath.Join(folder, OwnerName+".2")),
			os.WriteFile(filepath.Join(folder, StartsName+".1"), []byte("1000 n1\n"), 0o600), os.WriteFile(filepath.Join(folder, EndName+".1"), []byte(test.end), 0o600),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		s.rows = [][]string{row("7", "5_2", "RUNNING", "None", "0", marker+"u", "")}
		if got := s.states(t, c, map[string]string{"u": "5"})["u"]; got.State != "RUNNING" {
			t.Errorf("%s: %+v", test.name, got)
		}
		s.rows = [][]string{row("7", "5_2", "COMPLETED", "None", "0", marker+"u", "")}
		s.asked = nil
		for range 3 {
			if got := s.states(t, c, map[string]string{"u": "5"})["u"]; got.State != test.state || got.Reason != test.reason || got.ExitCode != test.code {
				t.Errorf("%s: %+v", test.name, got)
			}
		}
		if got := strings.Count(strings.Join(s.asked, " "), "sacct"); got != 1 {
			t.Errorf("%s: sacct was called %d times", test.name, got)
		}
	}
}

// Slurm has lost its state, and gives numbers a second time.
func TestNumberOfAnotherJob(t *testing.T) {
	for _, test := range []struct {
		name             string
		comment, command string
		other            bool
	}{
		{"no object's job", "", "/home/alice/x.sh", true},
		{"another object's job", marker + "u2", "", true},
		{"comment changed by a plugin", "site", "STATE/u/" + ScriptName + " an argument", false},
		{"another folder of state", marker + "u", "/old/u/" + ScriptName, false},
		{"component without a script", "", "", false},
	} {
		s := &site{accounting: "7|7|FAILED|1:0|2026-11-28T13:00:00|2026-11-28T13:01:00|2026-11-28T13:02:00|main|n1\n"}
		c := newClient(t, s)
		if err := os.MkdirAll(Folder(c.options.State, "u"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(Folder(c.options.State, "u"), NumberName), []byte("7\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.rows = [][]string{row("7", "7", "RUNNING", "None", "0", test.comment, strings.ReplaceAll(test.command, "STATE", c.options.State))}
		id, found, err := c.Find(t.Context(), "u")
		if id != "7" || !found || err != nil {
			t.Errorf("%s: found %q, %v, %v", test.name, id, found, err)
		}
		if err := c.Cancel(t.Context(), id); err != nil {
			t.Error(err)
		}
		if cancelled := slices.Contains(s.asked, "scancel 7"); cancelled == test.other {
			t.Errorf("%s: asked %q", test.name, s.asked)
		}
		if got := s.states(t, c, map[string]string{"u": "7"})["u"]; (got.State == "RUNNING") == test.other || got.State == "FAILED" {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}

// A cancelled script may run until KillWait is over, and a shell reads it meanwhile.
func TestForgetKeepsTheScriptOfARunningJob(t *testing.T) {
	s := &site{}
	c := newClient(t, s)
	if err := c.Forget("none"); err != nil {
		t.Error(err)
	}
	for _, test := range []struct {
		state string
		keeps bool
	}{{"RUNNING", true}, {"RUNNING", true}, {"COMPLETED", false}} {
		script, err := c.writeScript("u", "1", Job{Script: []byte("#!/bin/sh\n"), UserScript: []byte("#!/bin/sh\n")})
		if err != nil {
			t.Fatal(err)
		}
		kept := filepath.Join(c.options.State, forgotten, "u")
		if err := os.RemoveAll(filepath.Join(kept, UserScriptName)); err != nil {
			t.Fatal(err)
		}
		s.rows = [][]string{row("7", "7", test.state, "None", "0", marker+"u", "")}
		s.states(t, c, map[string]string{"u": "7"})
		if err := c.Forget("u"); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Dir(script)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the folder: %v", test.state, err)
		}
		if _, err := os.Stat(filepath.Join(kept, UserScriptName)); (err == nil) != test.keeps {
			t.Errorf("%s: %v", test.state, err)
		}
	}
	old := time.Now().Add(-2 * forgottenKept)
	if err := os.Chtimes(filepath.Join(c.options.State, forgotten, "u"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := beside(t, c, s).Forget("u2"); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(filepath.Join(c.options.State, forgotten)); len(entries) > 0 || err != nil {
		t.Errorf("%v, %v", entries, err)
	}
}

// A caller that asks once per interval gets a new answer each time. Others share it.
func TestStatesAreNew(t *testing.T) {
	s := &site{}
	c := newClient(t, s)
	c.options.Interval = time.Hour
	jobs := map[string]string{"u": "7"}
	c.last = &snapshot{began: time.Now().Add(-c.options.Interval + 100*time.Millisecond)}
	for range 2 {
		s.states(t, c, jobs)
	}
	if calls := strings.Count(strings.Join(s.asked, " "), "squeue"); calls != 1 {
		t.Errorf("%d calls of squeue", calls)
	}
}

func TestForgetDuringStates(t *testing.T) {
	s := &site{rows: [][]string{row("8", "8", "PENDING", "JobHeldUser", "0", marker+"u", "")}}
	c := newClient(t, s)
	c.options.Ask = func(ctx context.Context, command ...string) ([]byte, error) {
		if command[0] == "sacct" {
			if err := c.Forget("u"); err != nil {
				t.Error(err)
			}
		}
		return s.ask(ctx, command...)
	}
	s.states(t, c, map[string]string{"u": "7"})
}

func TestJobsThatLeftTheQueue(t *testing.T) {
	disabled := errors.New("run sacct: exit status 1: Slurm accounting storage is disabled")
	for _, c := range []struct {
		name                string
		accounting          any
		owner, starts, ends string
		state, reason       string
		code                int
	}{
		{"accounting", "7|7|CANCELLED by 1000|0:15|2026-11-28T13:00:00|2026-11-28T13:01:00|2026-11-28T13:02:00|main|n1\n", "7", "1000 n1\n", "", "CANCELLED", "", 0},
		{"timeout in accounting", "7|7|TIMEOUT|0:0|2026-11-28T13:00:00|2026-11-28T13:01:00|2026-11-28T13:02:00|main|n1\n", "", "", "", "TIMEOUT", "", 0},
		{"record of success", disabled, "7", "1000 n1\n", "0 1010\n", "COMPLETED", "", 0},
		{"record of failure", disabled, "7", "1000 n1\n1005 n2\n", "4 1010\n", "FAILED", "", 4},
		{"killed", disabled, "7", "1000 n1\n", "", Unknown, "recorded no end", 0},
		{"never began", disabled, "", "", "", Unknown, "has not begun", 0},
		{"record of another job", disabled, "6", "1000 n1\n", "0 1010\n", Unknown, "has not begun", 0},
		{"incomplete record", "", "7", "1000", "0", Unknown, "recorded no end", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &site{accounting: c.accounting}
			client := newClient(t, s)
			folder := Folder(client.options.State, "u")
			if err := os.MkdirAll(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			if c.owner != "" {
				if err := os.Symlink(c.owner, filepath.Join(folder, OwnerName)); err != nil {
					t.Fatal(err)
				}
			}
			for name, text := range map[string]string{StartsName: c.starts, EndName: c.ends} {
				if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); text != "" && err != nil {
					t.Fatal(err)
				}
			}
			got := s.states(t, client, map[string]string{"u": "7"})["u"]
			if c.state == Unknown {
				if Ended(got.State) {
					t.Errorf("given up at once: %+v", got)
				}
				client.known["u"].missing = time.Now().Add(-2 * forgottenAfter)
				got = s.states(t, client, map[string]string{"u": "7"})["u"]
			}
			if got.State != c.state || got.ExitCode != c.code || !strings.Contains(got.Reason, c.reason) || !Ended(got.State) {
				t.Errorf("%+v", got)
			}
			if strings.Contains(c.name, "failure") && got.Restarts != 1 {
				t.Errorf("%d restarts", got.Restarts)
			}
		})
	}
}

func TestSitesWithoutAccountingAreAskedOnce(t *testing.T) {
	s := &site{accounting: errors.New("run sacct: exit status 1: Slurm accounting storage is disabled")}
	c := newClient(t, s)
	for range 3 {
		s.states(t, c, map[string]string{"u": "7"})
	}
	if got := strings.Count(strings.Join(s.asked, " "), "sacct"); got != 1 {
		t.Errorf("sacct was called %d times", got)
	}
}

// Slurm may carry out a submission after the client gave it up.
func TestSecondHeldJobIsCancelled(t *testing.T) {
	s := &site{}
	c := newClient(t, s)
	own := filepath.Join(c.options.State, "u", ScriptName)
	second := row("8", "8", "PENDING", "JobHeldUser", "0", "changed by a plugin", own)
	for _, step := range []struct {
		first  []string
		cancel string
	}{
		{row("7", "7", "PENDING", "JobHeldUser", "0", marker+"u", own), ""}, // neither job was released yet
		{row("7", "7", "RUNNING", "None", "0", marker+"u", own), "scancel 8"},
	} {
		s.rows, s.asked = [][]string{step.first, second, row("9", "9", "PENDING", "JobHeldUser", "0", "other", "/x/"+ScriptName)}, nil
		s.states(t, c, map[string]string{"u": "7"})
		if got := strings.Join(s.asked, ", "); strings.Contains(got, "scancel") != (step.cancel != "") || !strings.Contains(got, step.cancel) {
			t.Errorf("asked %s, want %q", got, step.cancel)
		}
	}
}

// The comment of an object may contain anything.
func TestCommentNamesOnlyItsOwnObject(t *testing.T) {
	s := &site{}
	c := newClient(t, s)
	withSbatch(t, `for word; do case $word in --comment=*) echo "${word#--comment=}" >"$0.comment";; esac; done; echo 8`+"\n")
	if _, err := c.Submit(t.Context(), "own", "1", prepared(Job{Script: []byte("#!/bin/sh\n"), Comment: "berth-" + marker + "object=victim " + marker + "victim"})); err != nil {
		t.Fatal(err)
	}
	path, err := exec.LookPath("sbatch")
	if err != nil {
		t.Fatal(err)
	}
	comment, err := readSmall(path + ".comment")
	if err != nil {
		t.Fatal(err)
	}
	s.rows = [][]string{row("7", "7", "RUNNING", "None", "0", marker+"victim", ""), row("8", "8", "PENDING", "JobHeldUser", "0", comment, "")}
	s.asked = nil
	s.states(t, c, map[string]string{"victim": "7", "own": "8"})
	if got := strings.Join(s.asked, ", "); got != "squeue" {
		t.Errorf("asked %s for the comment %q", got, comment)
	}
	if job := (listed{comment: strings.TrimSpace(comment)}); job.belongs("victim", "/x") || !job.belongs("own", "/x") {
		t.Errorf("%q", comment)
	}
}

func TestFindAfterLostAnswer(t *testing.T) {
	s := &site{}
	c := newClient(t, s)
	if _, found, err := c.Find(t.Context(), "u"); found || err != nil {
		t.Errorf("nothing was submitted: %v, %v", found, err)
	}
	script, err := c.writeScript("u", "1", Job{Script: []byte("#!/bin/sh\n")})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		rows [][]string
		want string
	}{
		{"no job", [][]string{row("6", "6", "RUNNING", "None", "0", marker+"u2", "/other")}, ""},
		{"by comment", [][]string{row("7", "7", "PENDING", "JobHeldUser", "0", marker+"u x", "")}, "7"},
		{"by command", [][]string{row("8", "8", "PENDING", "JobHeldUser", "0", "", script+" an argument")}, "8"},
		{"released before held", [][]string{row("9", "9", "PENDING", "JobHeldUser", "0", marker+"u", ""), row("10", "10", "RUNNING", "None", "0", marker+"u", "")}, "10"},
		{"array", [][]string{row("12", "11_2", "RUNNING", "None", "0", marker+"u", "")}, "11"},
	} {
		s.rows = test.rows
		id, found, err := c.Find(t.Context(), "u")
		if id != test.want || found != (test.want != "") || err != nil {
			t.Errorf("%s: %q, %v, %v", test.name, id, found, err)
		}
		_ = os.Remove(filepath.Join(filepath.Dir(script), NumberName))
	}
	s.down = true
	if _, _, err := c.Find(t.Context(), "u"); !errors.As(err, new(*Unavailable)) || strings.Contains(err.Error(), "--Format") {
		t.Errorf("%v", err)
	}
}

// The process that submitted the job may have used another folder of state.
func TestFindWithoutFolder(t *testing.T) {
	s := &site{rows: [][]string{row("7", "7", "PENDING", "JobHeldUser", "0", marker+"u", "/other/u/"+ScriptName)}}
	c := newClient(t, s)
	c.options.Interval = time.Hour
	for range 2 { // the second call reads the number that the first one has recorded
		if id, found, err := c.Find(t.Context(), "u"); id != "7" || !found || err != nil {
			t.Errorf("%q, %v, %v", id, found, err)
		}
		s.rows = nil
	}
	for i := range 10 {
		if id, found, err := c.Find(t.Context(), fmt.Sprint("new", i)); found || err != nil {
			t.Errorf("%q, %v, %v", id, found, err)
		}
	}
	if len(s.asked) != 1 {
		t.Errorf("asked %q", s.asked)
	}
}

// After an outage, Slurm is not asked for each object.
func TestSubmissionsOfOneOutageShareTwoQueries(t *testing.T) {
	s := &site{}
	c := newClient(t, s)
	outage := time.Now().Add(-time.Hour)
	for i := range 10 {
		script, err := c.writeScript(fmt.Sprint("u", i), "1", Job{Script: []byte("#!/bin/sh\n")})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(script, outage, outage); err != nil {
			t.Fatal(err)
		}
	}
	find := func() {
		t.Helper()
		for i := range 10 {
			if id, found, err := c.Find(t.Context(), fmt.Sprint("u", i)); found || err != nil {
				t.Errorf("%q, %v, %v", id, found, err)
			}
		}
	}
	find()
	if len(s.asked) != 2 {
		t.Errorf("asked %q", s.asked)
	}
	// A submission that may still be on its way needs two new answers.
	if _, err := c.writeScript("u0", "1", Job{Script: []byte("#!/bin/sh\n")}); err != nil {
		t.Fatal(err)
	}
	s.asked = nil
	find()
	if len(s.asked) != 2 {
		t.Errorf("asked %q", s.asked)
	}
	// After a failed call, squeue is called again.
	s.down = true
	if _, err := c.snapshot(t.Context(), time.Now()); err == nil {
		t.Error("no error")
	}
	s.down = false
	if _, _, err := c.Find(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
}

func TestUnavailableSlurm(t *testing.T) {
	s := &site{down: true}
	c := newClient(t, s)
	_, err := c.States(t.Context(), map[string]string{"u": "7"})
	for _, err := range []error{err, c.Release(t.Context(), "7"), c.Cancel(t.Context(), "7")} {
		if !errors.As(err, new(*Unavailable)) {
			t.Errorf("%v", err)
		}
	}
}

func TestRejections(t *testing.T) {
	const policy = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n"
	for said, want := range map[string]string{
		"sbatch: error: invalid partition specified: lunge\nsbatch: error: Batch job submission failed: Invalid partition name specified\n": "refused",
		"sbatch: unrecognized option '--frob'\nTry \"sbatch --help\" for more information\n":                                                "refused",
		"sbatch: error: QOSMaxSubmitJobPerUserLimit\n" + policy:                                                                             "full",
		"sbatch: error: AssocMaxWallDurationPerJobLimit\n" + policy:                                                                         "refused",
		"sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n":                                "unavailable",
		"sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n":                                             "unavailable",
		"sbatch: error: Batch job submission failed: Message receive failure\n":                                                             "unavailable",
		"sbatch: error: Batch job submission failed: Message send failure\n":                                                                "unavailable",
		"sbatch: error: Batch job submission failed: Rate limit exceeded, please retry later\n":                                             "unavailable",
		"sbatch: error: Batch job submission failed: MaxJobCount limit reached\n":                                                           "full",
		"sbatch: error: Batch job submission failed: Requested partition configuration not available now\n":                                 "full",
	} {
		got, refused := "unavailable", new(Refused)
		if errors.As(rejection(oneLine(said)), &refused) {
			if got = "refused"; refused.Full {
				got = "full"
			}
			if strings.Contains(refused.Message, "sbatch:") || strings.Contains(refused.Message, "--help") {
				t.Errorf("message: %q", refused.Message)
			}
		}
		if got != want {
			t.Errorf("%q: %s, want %s", said, got, want)
		}
	}
}

func TestManyCallersShareOneQuery(t *testing.T) {
	s := &site{rows: [][]string{row("7", "7", "RUNNING", "None", "0", "", "")}}
	c := newClient(t, s)
	c.options.Interval = time.Hour
	for range 100 {
		s.states(t, c, map[string]string{"u": "7"})
	}
	if len(s.asked) != 1 {
		t.Errorf("asked %d times", len(s.asked))
	}
}

func TestWrongUID(t *testing.T) {
	c := newClient(t, &site{})
	for _, uid := range []string{"", "..", "a/b", "-x", "a b", strings.Repeat("x", 101)} {
		if _, err := c.Submit(t.Context(), uid, "1", prepared(Job{})); err == nil {
			t.Errorf("%q is submitted", uid)
		}
		if _, err := c.Submit(t.Context(), "u", uid, prepared(Job{})); err == nil {
			t.Errorf("version %q is submitted", uid)
		}
		if err := c.Forget(uid); err == nil {
			t.Errorf("%q is removed", uid)
		}
	}
}

func TestEnvironmentOfJobsHasNoSecrets(t *testing.T) {
	got := strings.Join(JobEnv([]string{"HOME=/h", "KUBECONFIG=/k", "AWS_SECRET_ACCESS_KEY=x", "SLURM_CONF=/c", "SLURM_JOB_ID=1", "SBATCH_UID=0", "LC_ALL=C", "BASH_FUNC_module%%=() {", "MODULEPATH=/m", "HOMER=x", "PATH=/bin"}), " ")
	if want := "HOME=/h SLURM_CONF=/c LC_ALL=C BASH_FUNC_module%%=() { MODULEPATH=/m PATH=/bin"; got != want {
		t.Errorf("got %s", got)
	}
}

func TestPatternsInOutputAreReplaced(t *testing.T) {
	t.Setenv("USER", "alice")
	if got := expand("/h/%x-%u-%N-%%-%t-%j-%4A.out", listed{root: "12", name: "n%u", nodes: "n[3-4]"}); got != "/h/n%u-alice-n3-%-%t-12-0012.out" {
		t.Errorf("got %s", got)
	}
}

func FuzzParseAccounted(f *testing.F) {
	f.Add("7_1|8|CANCELLED by 1000|0:15|2026-11-28T13:00:00|Unknown|None|main|n1\n7+0|7|FAILED|1:0||||\n")
	f.Fuzz(func(t *testing.T, output string) {
		fuzzbound.Watch(t)
		for _, job := range parseAccounted(output) {
			if job.root != "" && !strings.HasPrefix(job.part, job.root) {
				t.Errorf("%+v", job)
			}
		}
	})
}
