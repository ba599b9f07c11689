package berthd

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

// Users can name their own jobs while these run, and no jobs of others.
func TestJobsNamedByUsers(t *testing.T) {
	w := newWired(t)
	a, other := w.allocate(1, 1000), w.allocate(2, 1001)
	w.pods.put(&localPod{Allocation: a, ready: true})
	w.pods.put(&localPod{Allocation: other, ready: true})
	f := w.following("1000")
	has := func(names ...string) func() bool {
		return func() bool { return slices.Equal(namesOf(f, a), names) }
	}
	name := func(uid, job uint32, text, want string) {
		t.Helper()
		err := w.name(t.Context(), uid, job, text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d names job %d %s: %v, want %q", uid, job, text, err, want)
		}
	}
	name(1001, 1, "web", "you have no such job on n0")
	name(1000, 3, "web", "you have no such job on n0")
	name(1000, 1, "Web", "lowercase letters")
	name(1000, 1, "web.default,api", "")
	w.await("others know the names", has("api", "web.default"))
	w.await("the daemon knows what etcd has", w.keeps("api", "web.default"))
	// The same names again are no change.
	name(1000, 1, "api,web.default", "")
	name(1000, 1, "web", "")
	name(1000, 1, "db", "")
	w.await("they know the new ones", has("db"))
	w.await("the daemon knows the new ones", w.keeps("db"))
	// Three changes were free. The next one needs a pause, which also applies to
	// other jobs in this network.
	w.changedAt(time.Now().Add(time.Hour))
	name(1000, 1, "late", "names have just changed on n0: try again in ")
	before := time.Now().Add(-namesPause)
	w.changedAt(before)
	name(1000, 1, "web", "")
	w.jobNames.mu.Lock()
	if !w.jobNames.changed["1000"].After(before) {
		t.Error("there is no pause after the first one")
	}
	w.jobNames.mu.Unlock()
	w.changedAt(before)
	name(1000, 1, "db", "")
	w.await("they know the ones after the pause", has("db"))
	w.await("the daemon knows the ones after the pause", w.keeps("db"))
	// etcd loses the names.
	if _, err := w.store.Client().Delete(t.Context(), namesKey(a, "")); err != nil {
		t.Fatal(err)
	}
	w.await("they know of none", has())
	w.await("the daemon knows of the deletion", w.keeps())
	w.keep("1", "db")
	w.relist()
	w.await("they know them again", has("db"))
	// A node that was cut off while names were removed does not restore them.
	if _, err := w.store.SetNames(t.Context(), a, "", nil); err != nil {
		t.Fatal(err)
	}
	w.await("they know of none any more", has())
	w.await("the daemon knows that there are none", w.keeps())
	w.keep("1", "db")
	w.relist()
	w.await("the daemon knows that they were taken back", w.keeps())
	if known, err := w.store.List(t.Context(), ""); err != nil || len(known.Names[store.Part{ID: "1", After: a.After}].Names) > 0 {
		t.Errorf("names that were taken back: %v, %v", known.Names, err)
	}
	if _, err := w.store.SetNames(t.Context(), a, "", []string{"db"}); err != nil {
		t.Fatal(err)
	}
	w.await("they know of the last one", has("db"))
	w.pods.take("1")
	if err := w.store.Free(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	w.await("names go with the job", has())
	if _, err := w.store.SetNames(t.Context(), a, "", []string{"late"}); err == nil || !strings.Contains(err.Error(), "released meanwhile") {
		t.Errorf("a job that is over: %v", err)
	}
}

// namesKey returns the key in etcd of the names that an allocation has.
func namesKey(a siteconf.Allocation, node string) string {
	return siteconf.Prefix + path.Join("networks", a.Owner(), "named", a.ID(), fmt.Sprint(a.After), node, "names")
}

// namesOf returns all names of an allocation that a follower knows. Names from runs
// on a node have the node's name as a prefix.
func namesOf(f *follower, a siteconf.Allocation) []string {
	var all []string
	for which, now := range f.allNames() {
		if which.ID == a.ID() && which.After == a.After {
			for _, name := range now.Names {
				all = append(all, path.Join(which.Node, name))
			}
		}
	}
	slices.Sort(all)
	return all
}

// keeps reports whether the daemon has these names of job 1, to restore them if etcd
// loses them.
func (w *wired) keeps(names ...string) func() bool {
	return func() bool {
		w.jobNames.mu.Lock()
		defer w.jobNames.mu.Unlock()
		return slices.Equal(w.jobNames.jobs["1"].user.Names, names)
	}
}

// keep gives the daemon names of a job that etcd had before.
func (w *wired) keep(id string, names ...string) {
	w.jobNames.mu.Lock()
	defer w.jobNames.mu.Unlock()
	w.jobNames.jobs[id].user = store.GivenNames{Names: names, Revision: 1}
}

// If two nodes change a job's names, each keeps the later names, in whatever order it
// receives both changes.
func TestLateNamesAreNotKept(t *testing.T) {
	n := &jobNames{jobs: map[string]*namedJob{"1": {Allocation: siteconf.Allocation{Job: 1, After: 7}}}}
	for _, now := range []store.GivenNames{{Names: []string{"theirs"}, Revision: 12}, {Names: []string{"mine"}, Revision: 11}, {Names: nil, Revision: 10}} {
		n.remember(store.Part{ID: "1", After: 7}, now)
	}
	n.remember(store.Part{ID: "1", After: 6}, store.GivenNames{Names: []string{"former"}, Revision: 13})
	if kept := n.jobs["1"].user; !slices.Equal(kept.Names, []string{"theirs"}) {
		t.Errorf("kept: %+v", kept)
	}
}

// A pod stays when a key is deleted that a later version has written beside allocations.
func TestPodsStayWhenKeysOfALaterBerthdGo(t *testing.T) {
	w := newWired(t)
	a := w.allocate(1, 1000)
	w.pods.put(&localPod{Allocation: a, ready: true})
	f := w.following("1000")
	w.await("the job is known", func() bool { return f.all()["1"].Job == 1 })
	prefix := siteconf.Prefix + "networks/1000/"
	for _, key := range []string{"later/1", "later/2/1", "1"} {
		if _, err := w.store.Client().Put(t.Context(), prefix+key, `["no allocation"]`); err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.Client().Delete(t.Context(), prefix+key); err != nil {
			t.Fatal(err)
		}
	}
	b := w.allocate(2, 1000)
	w.await("the next job is seen", func() bool { return f.all()["2"].After == b.After })
	w.pods.mu.Lock()
	defer w.pods.mu.Unlock()
	if w.pods.local["1"] == nil {
		t.Error("a job is over for what somebody else has removed")
	}
}
