package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/site/siteconf"
)

// berthdThat starts a fake berthd that answers one question with the given message
// and files, and returns its directory.
func berthdThat(t *testing.T, answer siteconf.Message, files ...string) (dir string, asked <-chan siteconf.Message) {
	t.Helper()
	dir = t.TempDir()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, siteconf.Socket), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	questions := make(chan siteconf.Message, 1)
	go func() {
		defer close(questions)
		conn, err := listener.AcceptUnix()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		question, _, err := siteconf.ReadMessage(conn)
		if err != nil {
			t.Error(err)
			return
		}
		questions <- question
		var fds []int
		for _, name := range files {
			file, err := os.Open(name)
			if err != nil {
				t.Error(err)
				return
			}
			defer file.Close()
			fds = append(fds, int(file.Fd()))
		}
		if _, _, err := conn.WriteMsgUnix(answer.Encode(), unix.UnixRights(fds...), nil); err != nil {
			t.Error(err)
		}
	}()
	return dir, questions
}

func TestRunRequestsItsNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "held")
	if err := os.WriteFile(file, []byte("web"), 0o600); err != nil {
		t.Fatal(err)
	}
	ok := siteconf.Message{Verb: siteconf.VerbOK, Fields: map[string]string{"domain": "shop.alice.bed"}}
	dir, asked := berthdThat(t, ok, file)
	answer, held, err := askForNames(t.Context(), dir, "17", "web.default,api")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	text := make([]byte, 3)
	if _, err := held.Read(text); err != nil || string(text) != "web" || answer.Fields["domain"] != "shop.alice.bed" {
		t.Errorf("it holds %q, %v, and is told %v", text, err, answer)
	}
	if question := <-asked; question.Verb != siteconf.VerbServe || question.Fields["job"] != "17" || question.Fields["names"] != "web.default,api" {
		t.Errorf("asked: %v", question)
	}
	dir, _ = berthdThat(t, ok)
	if _, _, err := askForNames(t.Context(), dir, "17", "web"); err == nil || !strings.Contains(err.Error(), "the same version") {
		t.Errorf("nothing to hold: %v", err)
	}
	dir, _ = berthdThat(t, ok, file, file)
	if _, _, err := askForNames(t.Context(), dir, "17", "web"); err == nil || !strings.Contains(err.Error(), "the same version") {
		t.Errorf("too much to hold: %v", err)
	}
	dir, _ = berthdThat(t, siteconf.Message{Verb: siteconf.VerbError, Fields: map[string]string{"reason": "you have no such job"}})
	if _, _, err := askForNames(t.Context(), dir, "17", "web"); err == nil || err.Error() != "you have no such job" {
		t.Errorf("refused: %v", err)
	}
	if _, _, err := askForNames(t.Context(), t.TempDir(), "17", "web"); err == nil || !strings.Contains(err.Error(), "reach berthd") {
		t.Errorf("no berthd: %v", err)
	}
}

// A run waits only for a berthd that is being replaced or serves too many
// connections.
func TestRunWaitsForBerthd(t *testing.T) {
	refused := errors.New("you have no such job")
	for name, c := range map[string]struct {
		answers []error
		want    error
	}{
		"at once": {[]error{nil}, nil}, "after a while": {[]error{syscall.ECONNREFUSED, fmt.Errorf("reach berthd: %w", syscall.ENOENT), nil}, nil},
		"too many, and closes": {[]error{fmt.Errorf("read: %w", siteconf.ErrClosed), syscall.EPIPE, syscall.ECONNRESET, syscall.ECONNREFUSED, nil}, nil},
		"with a refusal":       {[]error{syscall.ECONNREFUSED, refused}, refused},
	} {
		asked := 0
		err := untilBerthdServes(t.Context(), func() error {
			asked++
			return c.answers[asked-1]
		})
		if !errors.Is(err, c.want) || asked != len(c.answers) {
			t.Errorf("it answers %s: asked %d times, %v", name, asked, err)
		}
	}
	// A connection that the current berthd closes immediately is recognized.
	dir := t.TempDir()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, siteconf.Socket), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	asked := 0
	err = untilBerthdServes(t.Context(), func() error {
		if asked++; asked > 3 {
			return refused
		}
		_, _, err := askForNames(t.Context(), dir, "17", "web")
		return err
	})
	if !errors.Is(err, refused) {
		t.Errorf("berthd closes the connection: asked %d times, %v", asked, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := untilBerthdServes(ctx, func() error { return syscall.ECONNREFUSED }); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the run is over: %v", err)
	}
}

func TestNameResolution(t *testing.T) {
	ports, err := namedPorts(cluster.Spec{Publish: []string{"8080:80", "web.default=8081:30080", "api=8443"}})
	if err != nil || namesOf(ports) != "web.default,api" {
		t.Fatalf("%v, %v", ports, err)
	}
	answer := siteconf.Message{Fields: map[string]string{"domain": "shop.alice.bed"}}
	want := []string{
		"your jobs and sessions reach port 30080 of the nodes at web.default.shop.alice.bed:8081",
		"your jobs and sessions reach port 8443 of the nodes at api.shop.alice.bed:8443",
	}
	if lines := describeNames(ports, answer); !slices.Equal(lines, want) {
		t.Errorf("told: %q", lines)
	}
	answer.Fields["wait"] = "27"
	if lines := describeNames(ports, answer); !strings.HasSuffix(lines[1], "api.shop.alice.bed:8443, in about 27 s, as names have just changed") {
		t.Errorf("told: %q", lines)
	}
}

// In the hosts' network there are no names, and the error names the alternative.
func TestNamesNeedJobsOwnNetwork(t *testing.T) {
	spec := cluster.Spec{Publish: []string{"8080:80"}}
	getenv := func(name string) string { return map[string]string{hostnet.PodAddress: "192.0.2.1"}[name] }
	if _, _, err := namePublished(t.Context(), spec, nil, getenv); err != nil {
		t.Errorf("without names: %v", err)
	}
	spec.Publish = append(spec.Publish, "web=8081:80")
	for place, allocation := range map[string]*allocation.Allocation{
		"no job": nil, "a job in the hosts' network": {Job: slurm.Job{ID: "17", NodeName: "n1", AllocatedNodes: []string{"n1"}, Components: 1}},
	} {
		if _, _, err := namePublished(t.Context(), spec, allocation, getenv); err == nil || !strings.Contains(err.Error(), "name web: ") || !strings.Contains(err.Error(), "without a name") {
			t.Errorf("%s: %v", place, err)
		}
	}
}
