package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/objectstore"
	"berth.dev/berth/internal/slurmjobs/results"
)

// collectFixture returns a collector without --results-image and --s3-endpoint, and the script of the
// object u1 in its state folder.
func collectFixture(t *testing.T, script string) collector {
	t.Helper()
	home := t.TempDir()
	folder := queue.Folder(filepath.Join(home, "state"), "u1")
	if err := errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(filepath.Join(folder, queue.UserScriptName), []byte(script), 0o600)); err != nil {
		t.Fatal(err)
	}
	endpoints, err := objectstore.New(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	return collector{
		preparer: preparer{roots: []string{home}, state: filepath.Join(home, "state"), storage: storage{endpoints: endpoints}}, find: foundJob("17"),
	}
}

var (
	ran         = map[string]any{"started": "2026-11-28T17:21:03Z", "jobID": "17"}
	inline      = map[string]any{"jobscript": "#!/bin/sh\n", "scriptlocation": "inline"}
	someStorage = map[string]any{"s3secret": "a", "endpoint": "minio:9000"}
	someUpload  = map[string]any{"bucket": "b"}
)

// TestCollectEdited: objects that were edited after their job had ended, and objects that no
// definition admits, give an error.
func TestCollectEdited(t *testing.T) {
	c := collectFixture(t, "#!/bin/sh\n")
	c.image = "busybox"
	object := func(kind string, spec any) *unstructured.Unstructured {
		version := "wlm.sylabs.io/v1alpha1"
		if kind == "BridgeJob" {
			version = "bridgejob.ibm.com/v1alpha1"
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": version, "kind": kind, "metadata": map[string]any{"uid": "u1", "namespace": "lab", "name": "train"}, "spec": spec, "status": ran,
		}}
	}
	for _, edited := range []*unstructured.Unstructured{
		object("BridgeJob", map[string]any{"jobdata": inline}),
		object("BridgeJob", map[string]any{"jobdata": inline, "s3storage": someStorage, "s3upload": map[string]any{"bucket": "", "files": "a"}}),
		object("SlurmJob", map[string]any{"batch": "#!/bin/sh\n"}),
		object("WlmJob", map[string]any{"image": "a.sif"}),
	} {
		if text, err := c.collect(t.Context(), edited); !errors.As(err, new(*results.Final)) || !strings.Contains(err.Error(), "asks for no results any more") {
			t.Errorf("%v: got %q, %v", edited, text, err)
		}
	}
	for _, kind := range []string{"BridgeJob", "SlurmJob", "WlmJob", "Pod"} {
		for _, spec := range []any{nil, "", []any{}, map[string]any{}, map[string]any{"results": nil}, map[string]any{"results": map[string]any{}},
			map[string]any{"batch": "#!/bin/sh\n", "results": map[string]any{"from": "a", "mount": nil}},
			map[string]any{"batch": "", "results": map[string]any{"mount": map[string]any{"name": 1}}},
			map[string]any{"s3upload": nil}, map[string]any{"s3upload": map[string]any{"bucket": "b"}}, map[string]any{"jobdata": inline, "s3upload": someUpload},
			map[string]any{"jobdata": inline, "s3upload": map[string]any{"bucket": "b", "files": ",,%,../..,/"}, "s3storage": someStorage}} {
			if text, err := c.collect(t.Context(), object(kind, spec)); err == nil {
				t.Errorf("%s %v: got %q", kind, spec, text)
			}
		}
	}
}

// TestCollectWithoutOptions: a controller that was restarted without its options names them, and
// collects the results once it has them.
func TestCollectWithoutOptions(t *testing.T) {
	c := collectFixture(t, "#!/bin/sh\n")
	slurmJob := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "wlm.sylabs.io/v1alpha1", "kind": "SlurmJob", "metadata": map[string]any{"uid": "u1", "namespace": "lab", "name": "train"},
		"spec": map[string]any{"batch": "#!/bin/sh\n", "results": map[string]any{"from": "a", "mount": map[string]any{"name": "v", "persistentVolumeClaim": map[string]any{"claimName": "c"}}}}, "status": ran,
	}}
	for want, object := range map[string]*unstructured.Unstructured{
		"with --results-image":                              slurmJob,
		"start berth with --s3-endpoint https://minio:9000": bridgeJob(map[string]any{"jobdata": inline, "s3storage": someStorage, "s3upload": someUpload}, ran),
	} {
		if _, err := c.collect(t.Context(), object); err == nil || errors.As(err, new(*results.Final)) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestUploadChecksItsInput: the number of a job comes from Slurm, and its working directory is checked
// again, because links may have changed.
func TestUploadChecksItsInput(t *testing.T) {
	object := bridgeJob(map[string]any{"jobdata": inline, "s3storage": someStorage, "s3upload": someUpload}, ran)
	c := collectFixture(t, "#!/bin/sh\n#SBATCH --chdir=work\n")
	for _, id := range []string{"", "../1", "1_2"} {
		c.find = foundJob(id)
		if _, err := c.collect(t.Context(), object); err == nil || errors.As(err, new(*results.Final)) || !strings.Contains(err.Error(), "the number of the job is not in --state-dir") {
			t.Errorf("%q: got %v", id, err)
		}
	}
	c.find = foundJob("17")
	if err := os.Symlink("/etc", filepath.Join(c.preparer.roots[0], "work")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.collect(t.Context(), object); !errors.As(err, new(*results.Final)) || !strings.Contains(err.Error(), "--chdir") {
		t.Error(err)
	}
}

// TestUploadTooLarge: an upload that would occupy a collector for long fails before the first request.
func TestUploadTooLarge(t *testing.T) {
	c := collectFixture(t, "#!/bin/sh\n")
	home := c.preparer.roots[0]
	var names []string
	for i := range 21 { // files of 5 GiB without content
		names = append(names, fmt.Sprint("f", i))
		path := filepath.Join(home, names[i])
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, objectstore.MaxFile)); err != nil {
			t.Fatal(err)
		}
	}
	collect := func(names []string) error {
		upload := map[string]any{"bucket": "b", "files": strings.Join(names, ",")}
		_, err := c.collect(t.Context(), bridgeJob(map[string]any{"jobdata": inline, "s3storage": someStorage, "s3upload": upload}, ran))
		return err
	}
	if err := collect(names); !errors.As(err, new(*results.Final)) || !strings.Contains(err.Error(), "are larger than 107374182400 bytes together") {
		t.Error(err)
	}
	if err := collect(names[1:]); err == nil || strings.Contains(err.Error(), "larger") {
		t.Error(err)
	}
}
