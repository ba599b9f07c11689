package sited

import (
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/site"
)

// A user names his own job, for as long as it lives, and others' not.
func TestUsersNameTheirJobs(t *testing.T) {
	w := newWired(t)
	a, other := w.allocate(1, 1000), w.allocate(2, 1001)
	w.local["1"], w.local["2"] = &localPod{Allocation: a, ready: true}, &localPod{Allocation: other, ready: true}
	f := w.following("1000")
	has := func(names ...string) func() bool {
		return func() bool { return slices.Equal(f.namesOf(a), names) }
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
	name(1000, 1, "Web", "small letters")
	name(1000, 1, "web.default,api", "")
	w.await("others know the names", has("api", "web.default"))
	// The same once more is no change, and another one has to wait.
	name(1000, 1, "api,web.default", "")
	w.await("the daemon knows what etcd has", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.local["1"].named) == 2
	})
	name(1000, 1, "db", "try again in a second")
	w.local["1"].namedAt = w.local["1"].namedAt.Add(-namesPause)
	name(1000, 1, "db", "")
	w.await("they know the new ones", has("db"))
	// etcd has lost them.
	if err := w.store.SetNames(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	w.await("they know of none", has())
	w.keepNames(named{"1", a.After}, []string{"db"})
	w.relist()
	w.await("they know them again", has("db"))
	if known, err := w.store.read(t.Context()); err != nil || len(known.jobs) != 2 {
		t.Errorf("jobs: %v, %v", known.jobs, err)
	}
	w.mu.Lock()
	delete(w.local, "1")
	w.mu.Unlock()
	if err := w.store.Free(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	w.await("names go with the job", has())
	if err := w.store.SetNames(t.Context(), a, []string{"late"}); err == nil || !strings.Contains(err.Error(), "released meanwhile") {
		t.Errorf("a job that is over: %v", err)
	}
}

// Whatever a group is called, its keys are told apart by position.
func TestKeysOfNames(t *testing.T) {
	a := site.Allocation{Job: 7, Group: namedPart, After: 9}
	if which, found := namedOf(namedKey(a)); !found || which != (named{"7", 9}) {
		t.Errorf("%s: %v, %t", namedKey(a), which, found)
	}
	for _, key := range []string{podsKey(a), atKey(a, "n0"), podsKey(site.Allocation{Job: 7, Group: at})} {
		if _, found := namedOf(key); found {
			t.Errorf("%s is one of names", key)
		}
	}
	if _, found := placeOf(namedKey(a)); found {
		t.Errorf("%s is one of addresses", namedKey(a))
	}
}
