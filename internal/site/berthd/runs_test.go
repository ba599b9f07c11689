package berthd

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/nametable"
	"berth.dev/berth/internal/site/siteconf"
)

// newServing returns a daemon with names and job 1 of user 1000.
func newServing(t *testing.T) (*wired, siteconf.Allocation) {
	t.Helper()
	w := newWired(t)
	w.config.DNS.Program, w.runs.dir = "dns", filepath.Join(w.dir, servedDir)
	if err := os.Mkdir(w.runs.file(""), 0o700); err != nil {
		t.Fatal(err)
	}
	a := w.allocate(1, 1000)
	w.pods.put(&localPod{Allocation: a, ready: true})
	return w, a
}

// beginRun starts a run of job 1 that serves under names. It returns the file that
// the run holds.
func (w *wired) beginRun(names string) (held *os.File, answer map[string]string) {
	w.t.Helper()
	answer = map[string]string{}
	files, err := w.nameRun(w.t.Context(), 1000, 1, names, answer)
	if err != nil || len(files) != 1 {
		w.t.Fatalf("serve %s: %v, %v", names, files, err)
	}
	w.t.Cleanup(func() { files[0].Close() })
	return files[0], answer
}

// refuseRun starts a run that gets no names.
func (w *wired) refuseRun(uid, job uint32, names, want string) {
	w.t.Helper()
	files, err := w.nameRun(w.t.Context(), uid, job, names, map[string]string{})
	if err == nil || !strings.Contains(err.Error(), want) || len(files) > 0 {
		w.t.Errorf("%d names job %d %.20s: %v, %v, want %q", uid, job, names, files, err, want)
	}
}

// endRun ends a run and updates names as the daemon does.
func (w *wired) endRun(held *os.File) {
	w.t.Helper()
	if err := held.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.look()
}

func (w *wired) look() {
	w.t.Helper()
	if err := w.runs.update(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// heldFiles counts the files that runs hold.
func (w *wired) heldFiles() int {
	w.t.Helper()
	w.runs.mu.Lock()
	defer w.runs.mu.Unlock()
	all, problem, err := w.runs.held()
	if err != nil || problem != nil {
		w.t.Fatal(err, problem)
	}
	runs := 0
	for _, job := range all {
		runs += job.runs
	}
	return runs
}

func (w *wired) servedFiles() int {
	w.t.Helper()
	entries, err := os.ReadDir(w.runs.file(""))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(entries)
}

// changedAt sets the time of user 1000's last change of names that is subject to the pause.
func (w *wired) changedAt(when time.Time) {
	w.jobNames.mu.Lock()
	defer w.jobNames.mu.Unlock()
	w.jobNames.changed["1000"] = when
}

// Names of a run exist beside all others, and are removed when it ends.
func TestRunNamesAreRemovedWithRun(t *testing.T) {
	w, a := newServing(t)
	w.pods.put(&localPod{Allocation: w.allocate(2, 1001), ready: true})
	f := w.following("1000")
	has := func(names ...string) {
		t.Helper()
		w.await(fmt.Sprint("others know ", names), func() bool { return slices.Equal(namesOf(f, a), names) })
	}
	w.refuseRun(1001, 1, "web", "you have no such job on n0")
	w.refuseRun(1000, 2, "web", "you have no such job on n0")
	w.refuseRun(1000, 3, "web", "you have no such job on n0")
	w.refuseRun(1000, 1, "Web", "lowercase letters")
	w.refuseRun(1000, 1, "pod0", "a pod has that name")
	first, answer := w.beginRun("web.default,api")
	has("n0/api", "n0/web.default")
	if want := a.Domains(w.config.Cluster, nil)[0]; answer["domain"] != want || answer["wait"] != "" {
		t.Errorf("the run gets %v, want the domain %s", answer, want)
	}
	if err := w.name(t.Context(), 1000, 1, "db"); err != nil {
		t.Fatal(err)
	}
	has("db", "n0/api", "n0/web.default")
	second, _ := w.beginRun("web.default")
	w.look()
	has("db", "n0/api", "n0/web.default")
	w.endRun(first)
	has("db", "n0/web.default")
	// Names from another node stay that node's.
	if _, err := w.store.SetNames(t.Context(), a, "n1", []string{"theirs"}); err != nil {
		t.Fatal(err)
	}
	has("db", "n0/web.default", "n1/theirs")
	w.endRun(second)
	has("db", "n1/theirs")
	if files := w.heldFiles(); files != 0 {
		t.Errorf("%d files are held", files)
	}
	// They have changed four times, so the next change has to wait.
	w.changedAt(time.Now())
	third, answer := w.beginRun("late")
	if answer["wait"] == "" {
		t.Errorf("the run gets %v, not how long it has to wait", answer)
	}
	w.look()
	has("db", "n1/theirs")
	w.changedAt(time.Now().Add(-namesPause))
	w.look()
	has("db", "n0/late", "n1/theirs")
	// The removal of names has to wait too.
	w.endRun(third)
	has("db", "n0/late", "n1/theirs")
	w.changedAt(time.Now().Add(-namesPause))
	w.look()
	has("db", "n1/theirs")
}

// A new daemon reads from the files which names runs hold, and writes them again if
// etcd has lost them.
func TestRunNamesOutliveDaemonsAndEtcd(t *testing.T) {
	w, a := newServing(t)
	f := w.following("1000")
	has := func(names ...string) {
		t.Helper()
		w.await(fmt.Sprint("others know ", names), func() bool { return slices.Equal(namesOf(f, a), names) })
	}
	serves := func(names ...string) func() bool {
		return func() bool {
			w.jobNames.mu.Lock()
			defer w.jobNames.mu.Unlock()
			return slices.Equal(w.jobNames.jobs["1"].runs.Names, names)
		}
	}
	run, _ := w.beginRun("web")
	has("n0/web")
	w.await("the daemon knows what etcd has", serves("web"))
	w.pods.mu.Lock()
	w.pods.put(&localPod{Allocation: a, loaded: true})
	w.pods.mu.Unlock()
	w.relist()
	w.await("the next one learns it", serves("web"))
	w.look()
	has("n0/web")
	w.jobNames.mu.Lock()
	if changes := w.jobNames.jobs["1"].changes; changes != 0 {
		t.Errorf("the next one has changed the names %d times", changes)
	}
	w.jobNames.mu.Unlock()
	if _, err := w.store.Client().Delete(t.Context(), namesKey(a, "n0")); err != nil {
		t.Fatal(err)
	}
	has()
	w.await("the daemon knows of the deletion", serves())
	w.look()
	has("n0/web")
	// If etcd lost everything while it was cut off, the daemon received no event.
	w.await("the daemon knows that etcd has them again", serves("web"))
	if _, err := w.store.Client().Delete(t.Context(), namesKey(a, "n0")); err != nil {
		t.Fatal(err)
	}
	w.await("the daemon knows of the second deletion", serves())
	w.jobNames.mu.Lock()
	w.jobNames.jobs["1"].runs = store.GivenNames{Names: []string{"web"}, Revision: 1}
	w.jobNames.mu.Unlock()
	w.relist()
	has("n0/web")
	w.endRun(run)
	has()
}

// A user cannot fill the memory of a node, or etcd.
func TestRunsWithNamesAreLimited(t *testing.T) {
	w, _ := newServing(t)
	w.following("1000")
	many := make([]string, siteconf.MaxNames)
	for i := range many {
		many[i] = fmt.Sprintf("n%d", i)
	}
	w.refuseRun(1000, 1, strings.Join(append(many, "more"), ","), "65 names, and a job may have 64")
	run, _ := w.beginRun(strings.Join(many, ","))
	w.refuseRun(1000, 1, "more", "65 names, and a job may have 64")
	if files := w.servedFiles(); files != 1 {
		t.Errorf("%d files of one run", files)
	}
	w.endRun(run)
	for i := range maxServed {
		run, _ = w.beginRun(fmt.Sprintf("n%d", i))
	}
	w.refuseRun(1000, 1, "more", "16 runs have names on n0 already")
	w.endRun(run)
	w.beginRun("more")
}

// A run that releases its lock and keeps its file open cannot use up memory. Each
// file of a job exists only once, and a later run rewrites it.
func TestKeptRunFilesAreBounded(t *testing.T) {
	w, a := newServing(t)
	f := w.following("1000")
	files := map[uint64]bool{}
	var first *os.File
	for range 3 * maxServed {
		held, _ := w.beginRun("web")
		var stat unix.Stat_t
		if err := unix.Fstat(int(held.Fd()), &stat); err != nil {
			t.Fatal(err)
		}
		files[stat.Ino] = true
		if err := unix.Flock(int(held.Fd()), unix.LOCK_UN); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = held
		}
	}
	if n := w.servedFiles(); len(files) > maxServed || n > maxServed {
		t.Errorf("runs hold %d files in memory, and %d are in the directory: want %d at most", len(files), n, maxServed)
	}
	// A run that takes its lock again gets that file with its current contents.
	run, _ := w.beginRun("api")
	if err := unix.Flock(int(first.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	w.endRun(run)
	w.await("the names that a former run keeps", func() bool { return slices.Equal(namesOf(f, a), []string{"n0/api"}) })
	next, _ := w.beginRun("web")
	if text, err := os.ReadFile(next.Name()); err != nil || string(text) != "web" || next.Name() == run.Name() {
		t.Errorf("the next one has %q in %s, %v: another file than the former", text, next.Name(), err)
	}
	w.endRun(next)
	w.pods.take("1")
	w.look()
	if n := w.servedFiles(); n != 0 {
		t.Errorf("%d files of a job that is over", n)
	}
}

// An unreadable file keeps only its own job from getting new names. Existing names
// stay.
func TestUnreadableRunFile(t *testing.T) {
	w, a := newServing(t)
	w.pods.put(&localPod{Allocation: w.allocate(2, 1000), ready: true})
	f := w.following("1000")
	w.beginRun("web")
	// Use a link to itself, because root can read everything else.
	broken := w.runs.file(fmt.Sprintf("1-%d-3", a.After))
	if err := os.Symlink(broken, broken); err != nil {
		t.Fatal(err)
	}
	w.refuseRun(1000, 1, "api", "read names of a run: ")
	held, err := w.nameRun(t.Context(), 1000, 2, "api", map[string]string{})
	if err != nil {
		t.Fatalf("another job has no names: %v", err)
	}
	defer linux.CloseAll(held)
	if err := w.runs.update(t.Context()); err == nil || !strings.Contains(err.Error(), broken) {
		t.Errorf("the error is %v", err)
	}
	w.await("others know both", func() bool {
		return slices.Equal(namesOf(f, a), []string{"n0/web"}) && slices.Equal(namesOf(f, w.pods.local["2"].Allocation), []string{"n0/api"})
	})
}

// Of the jobs in a network, the one that has waited longest gets its names first, and
// each learns how long it has to wait.
func TestRunNamesAreQueued(t *testing.T) {
	w, _ := newServing(t)
	f := w.following("1000")
	for job := uint32(2); job <= 4; job++ {
		w.pods.put(&localPod{Allocation: w.allocate(job, 1000), ready: true})
		w.jobNames.jobs[fmt.Sprint(job)].changes = freeNames
	}
	w.changedAt(time.Now())
	var wait []int
	for _, job := range []uint32{3, 2, 4} {
		answer := map[string]string{}
		held, err := w.nameRun(t.Context(), 1000, job, "web", answer)
		if err != nil {
			t.Fatal(err)
		}
		defer linux.CloseAll(held)
		var seconds int
		if _, err := fmt.Sscan(answer["wait"], &seconds); err != nil {
			t.Fatal(answer, err)
		}
		wait = append(wait, (seconds+int(namesPause/time.Second)-1)/int(namesPause/time.Second))
	}
	if !slices.Equal(wait, []int{1, 2, 3}) {
		t.Errorf("they have to wait for so many pauses: %v", wait)
	}
	for i, job := range []string{"3", "2", "4"} {
		w.look()
		w.changedAt(time.Now().Add(-namesPause))
		w.look()
		a := w.pods.local[job].Allocation
		w.await(fmt.Sprintf("job %s is number %d in line", job, i), func() bool { return slices.Equal(namesOf(f, a), []string{"n0/web"}) })
	}
}

// Useless files are removed, even if a run holds them.
func TestUselessRunFilesAreRemoved(t *testing.T) {
	w, a := newServing(t)
	w.beginRun("web")
	w.write(servedDir+"/stray", "web", 0o600)
	w.write(servedDir+fmt.Sprintf("/1-%d-7", a.After+1), "web", 0o600)
	w.write(servedDir+fmt.Sprintf("/1-%d-88", a.After), "web", 0o600)
	w.look()
	if files := w.servedFiles(); files != 1 {
		t.Errorf("%d files of one run", files)
	}
	damaged, err := w.runs.begin(a, []string{"No Name"})
	if err != nil {
		t.Fatal(err)
	}
	defer damaged.Close()
	w.look()
	if files := w.servedFiles(); files != 1 {
		t.Errorf("%d files of one run beside a damaged one", files)
	}
	w.pods.take("1")
	w.look()
	if files := w.servedFiles(); files != 0 {
		t.Errorf("%d files of a job that is over", files)
	}
}

// A run that gets no names receives the error, and leaves nothing behind.
func TestRunsWithoutNames(t *testing.T) {
	w, _ := newServing(t)
	if err := w.store.Client().Close(); err != nil {
		t.Fatal(err)
	}
	w.refuseRun(1000, 1, "web", "name 1: ")
	if files := w.heldFiles(); files != 0 {
		t.Errorf("%d files of a run that etcd knows nothing of", files)
	}
	if err := os.RemoveAll(w.runs.file("")); err != nil {
		t.Fatal(err)
	}
	w.refuseRun(1000, 1, "web", "list runs with names")
	w.config.DNS.Program = ""
	w.refuseRun(1000, 1, "web", "has no names")
}

// The name server resolves a name from a run to the pod on the run's node, and a name
// of the job to all pods.
func TestRunNamesResolveToNodes(t *testing.T) {
	a := siteconf.Allocation{Job: 7, UID: 1000, User: "alice", Name: "shop", After: 9}
	for i, node := range []string{"n0", "n1", "n2"} {
		a.Pods = append(a.Pods, siteconf.Pod{Node: node, Address: netip.AddrFrom4([4]byte{10, 128, 0, byte(i + 2)})})
	}
	var table nametable.Table
	addNames(&table, a, map[store.Part]store.GivenNames{
		{ID: "7", After: 9}:             {Names: []string{"api"}},
		{ID: "7", After: 9, Node: "n1"}: {Names: []string{"web"}},
		{ID: "7", After: 9, Node: "n2"}: {Names: []string{"db", "web"}},
		{ID: "7", After: 8, Node: "n0"}: {Names: []string{"former"}},
		{ID: "8", After: 9, Node: "n0"}: {Names: []string{"another"}},
		{ID: "7", After: 9, Node: "n3"}: {Names: []string{"gone"}},
	})
	var all []string
	for _, p := range table.Pods {
		all = append(all, fmt.Sprint(p.Index, p.Names, p.Served))
	}
	if want := []string{"0 [api] []", "1 [] [web]", "2 [] [db web]"}; !slices.Equal(all, want) {
		t.Errorf("%q, want %q", all, want)
	}
}
