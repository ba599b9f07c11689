package process

import (
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/slurmjobs/joblog"
)

// Whoever may write statuses cannot name a file whose content is shown.
func TestForgedOutputs(t *testing.T) {
	key := filepath.Join(t.TempDir(), sealName)
	sealer, err := joblog.NewSealer(key)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := joblog.NewSealer(key + "-of-another")
	if err != nil {
		t.Fatal(err)
	}
	const path = "/home/u/slurm-7.out"
	for _, test := range []struct {
		output, seal string
		accepted     bool
	}{
		{"", "", true},
		{path, sealer.Seal("u1", path), true},
		{path, "", false},
		{path, stranger.Seal("u1", path), false},
		{path, sealer.Seal("u2", path), false}, // of another object
		{"/home/u/.ssh/id_rsa", sealer.Seal("u1", path), false},
	} {
		object := &unstructured.Unstructured{Object: map[string]any{"kind": "SlurmJob", "status": map[string]any{
			"jobID": "7", "state": "COMPLETED", "output": test.output, "outputSeal": test.seal,
		}}}
		object.SetUID("u1")
		job, err := jobOf(object, sealer)
		if (err == nil) != test.accepted || test.accepted && (job.Output != test.output || !job.Ended || job.Name != "job 7") {
			t.Errorf("%+v: got %+v, %v", test, job, err)
		}
	}
}
