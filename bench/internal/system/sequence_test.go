package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/sequence"
)

// TestSequenceWithOwnProgram: a system with its own build of berth is measured with
// that build, and no image is imported if there are no pods.
func TestSequenceWithOwnProgram(t *testing.T) {
	dir := t.TempDir()
	self, archive := filepath.Join(dir, "self"), filepath.Join(dir, "mpi.tar")
	for path, text := range map[string]string{self: "#!/bin/sh\necho \"$@\"\n", archive: ""} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := &berth{program: "/opt/old/bin/berth", place: Place{Self: self, Berth: "/usr/bin/berth", Archive: "bench.tar", MPIArchive: archive, CPUs: 4, Timeout: time.Minute}}
	for _, c := range []struct {
		does  Sequence
		image string
	}{
		{Sequence{Cluster: sequence.Nodes, Nodes: 1, NoPods: true}, ""},
		{Sequence{Cluster: sequence.Requirements, Nodes: 1}, " --image bench.tar "},
		{Sequence{Cluster: sequence.MPIPods, Nodes: 1, MPI: true}, " --image " + archive + " "},
	} {
		out, err := b.Run(t.Context(), Task{Sequence: &c.does})
		if err != nil || !strings.HasPrefix(out.Stdout, "step --usage -- /opt/old/bin/berth run --quiet ") || strings.Contains(out.Stdout, "/usr/bin/berth") {
			t.Errorf("%v: %s, %v", c.does, out.Stdout, err)
		}
		if !strings.Contains(out.Stdout, c.image) || strings.Contains(out.Stdout, " --image ") != (c.image != "") || !strings.Contains(out.Stdout, `"CPUs":4`) {
			t.Errorf("%v: %s", c.does, out.Stdout)
		}
	}
}
