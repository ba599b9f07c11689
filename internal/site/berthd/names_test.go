package berthd

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/site/siteconf"
)

// A user can name his own job while it runs, and no job of others.
func TestUsersNameTheirJobs(t *testing.T) {
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
		err := w.Name(t.Context(), uid, job, text)
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
	w.changedAt("1000", time.Now().Add(time.Hour))
	name(1000, 1, "late", "names have just changed on n0: try again in ")
	before := time.Now().Add(-namesPause)
	w.changedAt("1000", before)
	name(1000, 1, "web", "")
	w.jobNames.mu.Lock()
	if !w.jobNames.changed["1000"].After(before) {
		t.Error("there is no pause after the first one")
	}
	w.jobNames.mu.Unlock()
	w.changedAt("1000", before)
	name(1000, 1, "db", "")
	w.await("they know the ones after the pause", has("db"))
	w.await("the daemon knows the ones after the pause", w.keeps("db"))
	// etcd loses the names.
	if _, err := w.store.client.Delete(t.Context(), namesKey(a, "")); err != nil {
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
	if known, err := w.store.list(t.Context(), networksKey); err != nil || len(known.names[nameOwner{id: "1", after: a.After}].names) > 0 {
		t.Errorf("names that were taken back: %v, %v", known.names, err)
	}
	if known, err := w.store.read(t.Context()); err != nil || len(known.jobs) != 2 {
		t.Errorf("jobs: %v, %v", known.jobs, err)
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

// namesOf returns all names of an allocation that a follower knows. Names from runs
// on a node have the node's name as a prefix.
func namesOf(f *follower, a siteconf.Allocation) []string {
	var all []string
	for which, now := range f.allNames() {
		if which.id == a.ID() && which.after == a.After {
			for _, name := range now.names {
				all = append(all, path.Join(which.node, name))
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
		return slices.Equal(w.jobNames.jobs["1"].user.names, names)
	}
}

// keep gives the daemon names of a job that etcd had before.
func (w *wired) keep(id string, names ...string) {
	w.jobNames.mu.Lock()
	defer w.jobNames.mu.Unlock()
	w.jobNames.jobs[id].user = givenNames{names: names, revision: 1}
}

// If two nodes change a job's names, each keeps the later names, in whatever order it
// receives both changes.
func TestLateNamesAreNotKept(t *testing.T) {
	n := &jobNames{jobs: map[string]*namedJob{"1": {Allocation: siteconf.Allocation{Job: 1, After: 7}}}}
	for _, now := range []givenNames{{[]string{"theirs"}, 12}, {[]string{"mine"}, 11}, {nil, 10}} {
		n.remember(nameOwner{id: "1", after: 7}, now)
	}
	n.remember(nameOwner{id: "1", after: 6}, givenNames{[]string{"former"}, 13})
	if kept := n.jobs["1"].user; !slices.Equal(kept.names, []string{"theirs"}) {
		t.Errorf("kept: %+v", kept)
	}
}

// During an upgrade node by node, names written by a new berthd must not stop an old
// one. An old berthd takes all keys in etcd for allocations, and the last part of a
// key for a job.
func TestABerthdOfBeforeLeavesNamesAlone(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	a, err := s.Allocate(t.Context(), request(1, 1000))
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"", "n0"} {
		for _, names := range [][]string{{"web.default", "api"}, nil} {
			if _, err := s.SetNames(t.Context(), a, node, names); err != nil {
				t.Fatal(err)
			}
			got, err := s.client.Get(t.Context(), namesKey(a, node))
			if err != nil || len(got.Kvs) != 1 {
				t.Fatal(got, err)
			}
			seen, err := decode(got.Kvs[0].Value)
			if err != nil || seen.Login == "" || len(seen.Pods) > 0 || seen.ID() == a.ID() {
				t.Errorf("%s: it sees %+v, %v", got.Kvs[0].Value, seen, err)
			}
		}
		if last := path.Base(namesKey(a, node)); last != namesEnd {
			t.Errorf("when names go, %s is over for it", last)
		}
	}
}

// This berthd ignores keys that a later version writes beside allocations.
func TestKeysOfALaterBerthdAreLeftAlone(t *testing.T) {
	w := newWired(t)
	a := w.allocate(1, 1000)
	w.pods.put(&localPod{Allocation: a, ready: true})
	f := w.following("1000")
	w.await("the job is known", func() bool { return f.all()["1"].Job == 1 })
	var seen []string
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	keys := []string{
		networkPrefix("1000") + "later/1", networkPrefix("1000") + "later/2/1", namesPrefix(a) + fmt.Sprint(a.After), namesPrefix(a) + "x/" + namesEnd,
		networkPrefix("1000") + "1", networkPrefix("1000") + "pods/1/1",
	}
	for _, key := range keys {
		if _, err := w.store.client.Put(t.Context(), key, `["no allocation"]`); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keys[:5] {
		if _, err := w.store.client.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	b := w.allocate(2, 1000)
	err := w.store.Watch(ctx, networkPrefix("1000"), a.After, func(c change) {
		if seen = append(seen, c.id); c.id == "2" {
			cancel()
		}
	})
	if !slices.Equal(seen, []string{"1", "2"}) {
		t.Errorf("watched: %v (%v)", seen, err)
	}
	known, err := w.store.list(t.Context(), networksKey)
	if err != nil || len(known.jobs) != 2 || len(known.names)+len(known.at) > 0 {
		t.Errorf("%+v, %v", known, err)
	}
	w.await("the next job is seen", func() bool { return f.all()["2"].After == b.After })
	w.pods.mu.Lock()
	defer w.pods.mu.Unlock()
	if w.pods.local["1"] == nil {
		t.Error("a job is over for what somebody else has removed")
	}
}

// Keys are distinguished by position, whatever name a group has.
func TestKeysOfNames(t *testing.T) {
	a := siteconf.Allocation{Job: 7, Group: namesPart, After: 9}
	for _, node := range []string{"", "n0", namesEnd, namesPart} {
		key := namesKey(a, node)
		if which, found := parseNamesKey(key); !found || which != (nameOwner{"7", 9, node}) {
			t.Errorf("%s: %v, %t", key, which, found)
		}
		if _, found := placeOf(key); found || isPods(key) {
			t.Errorf("%s is one of addresses", key)
		}
	}
	for _, key := range []string{
		podsKey(a), atKey(a, "n0"), podsKey(siteconf.Allocation{Job: 7, Group: atPart}),
		namesPrefix(a) + "9/n0", namesPrefix(a) + "9//" + namesEnd, namesPrefix(a) + "9/n0/later/" + namesEnd, namesPrefix(a) + "9/n0/later",
	} {
		if _, found := parseNamesKey(key); found {
			t.Errorf("%s is one of names", key)
		}
	}
}
