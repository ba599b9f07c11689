package persistent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth.dev/berth/internal/base/rundir"
)

// start creates the directory of a run with a persistent cluster.
func start(t *testing.T, base, name string) *rundir.Dir {
	t.Helper()
	dir, err := rundir.Create(base, name+rundir.PrivateSuffix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Lock.Close() })
	if err := Mark(dir.Path); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestJobClusterIsFound(t *testing.T) {
	base := t.TempDir()
	places := []string{filepath.Join(base, "none"), base}
	if _, ok := Find(places, "12"); ok {
		t.Error("found a cluster where there is none")
	}
	start(t, base, "job-123-0-7")
	start(t, base, "local-99")
	worker := start(t, base, "job-12-0-7")
	if err := os.WriteFile(filepath.Join(worker.Path, rundir.HeadFile), []byte("n1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, ok := Find(places, "12"); !ok || c.Head != "n1" {
		t.Errorf("found %+v, %v; want a cluster whose head is n1", c, ok)
	}
	head := start(t, base, "job-12-1-8")
	if c, ok := Find(places, "12"); !ok || c.Head != "" || c.Name() != "job-12-1-8" {
		t.Errorf("found %+v, %v; want the one whose head is here", c, ok)
	}
	if c, ok := Find(places, Local); !ok || c.Name() != "local-99" {
		t.Errorf("found %+v, %v; want that of no job", c, ok)
	}
	if c, ok := Before(places, "12", head.Path); !ok || c.Path != worker.Path {
		t.Errorf("before %s is %+v, %v", head.Path, c, ok)
	}
	if c, ok := Before(places, "12", worker.Path); ok {
		t.Errorf("before the first one is %+v", c)
	}
}

func TestWaitForCluster(t *testing.T) {
	base := t.TempDir()
	dir := start(t, base, "local-1")
	c, _ := Find([]string{base}, Local)
	soon, cancel := context.WithTimeout(t.Context(), 2*poll)
	defer cancel()
	if _, err := c.AwaitReady(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a cluster that starts: %v", err)
	}
	if err := MarkReady(dir.Path, Facts{Job: Local, Nodes: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	if facts, err := c.AwaitReady(t.Context()); err != nil || !slices.Equal(facts.Nodes, []string{"a"}) {
		t.Errorf("a cluster that is ready: %+v, %v", facts, err)
	}
	if err := os.Remove(filepath.Join(dir.Path, rundir.PersistentFile)); err != nil {
		t.Fatal(err)
	}
	dir.Lock.Close()
	if _, err := c.AwaitReady(t.Context()); !errors.Is(err, ErrEnded) {
		t.Errorf("a cluster that has ended: %v", err)
	}
}

func TestEndRequest(t *testing.T) {
	base := t.TempDir()
	dir := start(t, base, "local-1")
	socket, err := Listen(dir.Path)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := Find([]string{base}, Local)
	type end struct {
		outcome Outcome
		err     error
	}
	ends := make(chan end, 2)
	for range 2 { // the second request waits for the end, too
		go func() {
			outcome, err := c.End(t.Context(), EndRequest{Grace: time.Minute}, func(Outcome) {})
			ends <- end{outcome, err}
		}()
	}
	request, answer, err := socket.Await(t.Context())
	if err != nil || request.Grace != time.Minute {
		t.Fatalf("request %+v, %v", request, err)
	}
	answer(Outcome{Asked: 3, Ended: 2})
	socket.Close()
	if err := dir.Remove(); err != nil {
		t.Fatal(err)
	}
	var outcomes []Outcome
	for range 2 {
		e := <-ends
		if e.err != nil {
			t.Error(e.err)
		}
		outcomes = append(outcomes, e.outcome)
	}
	if !slices.Contains(outcomes, Outcome{Asked: 3, Ended: 2}) {
		t.Errorf("outcomes %v", outcomes)
	}
}

func TestClusterReceivesImages(t *testing.T) {
	base := t.TempDir()
	dir := start(t, base, "local-1")
	socket, err := Listen(dir.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	c, _ := Find([]string{base}, Local)
	bring := func() chan error {
		brought := make(chan error, 1)
		go func() { brought <- c.BringImages(t.Context(), []string{"/a.tar", "b=/b.tar"}) }()
		return brought
	}
	for _, want := range []*Refusal{nil, {Code: 66, Text: "it is not an archive"}} {
		brought := bring()
		images, answer, err := socket.AwaitImages(t.Context())
		if err != nil || !slices.Equal(images, []string{"/a.tar", "b=/b.tar"}) {
			t.Fatalf("images %q, %v", images, err)
		}
		answer(want)
		var refusal *Refusal
		switch err := <-brought; {
		case want == nil && err != nil:
			t.Error(err)
		case want != nil && (!errors.As(err, &refusal) || *refusal != *want):
			t.Errorf("%v, want %v", err, want)
		}
	}
	unheard := bring() // nobody receives these
	socket.Close()
	socket.Close()
	if err := <-unheard; !errors.Is(err, ErrEnded) {
		t.Errorf("a cluster that ends says %v", err)
	}
}
