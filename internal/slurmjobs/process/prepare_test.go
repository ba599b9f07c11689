package process

import (
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"berth.dev/berth/internal/slurmjobs/joblog"
	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/results"
)

func TestResourceURLs(t *testing.T) {
	names := slurmNames{urls: []string{"http://elsewhere:6820/slurm/v0.0.38/"}, hosts: []string{"alps", "login1"}}
	for resource, want := range map[string]bool{
		"": true, "alps": true, "slurm://alps": true, "http://login1:6820/slurm/v0.0.38/": true, "http://elsewhere:6820/slurm/v0.0.38/": true,
		"http://elsewhere:6820/": false, "daint": false, "http://alps.example.org/": false, "http://[": false,
	} {
		if err := names.check(resource); (err == nil) != want {
			t.Errorf("%q: %v", resource, err)
		}
	}
	if err := names.check("daint"); err == nil || !strings.HasSuffix(err.Error(), "start 'berth slurm-jobs' with --resource-url daint") {
		t.Error(err)
	}
}

// TestRemoteScripts also checks that errors name the file.
func TestRemoteScripts(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "run.sh"), []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "large.sh"), make([]byte, maxScript+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(home, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := joblog.OpenRegular(filepath.Join(home, "pipe")); err == nil {
		t.Error("opened a pipe")
	}
	for path, want := range map[string]string{
		"pipe":   "it is no regular file",
		"run.sh": "", filepath.Join(home, "run.sh"): "", "none.sh": "no such file or directory", ".": "it is no regular file", "large.sh": "it is larger than 4194304 bytes",
	} {
		text, err := readScript(home, path)
		if want == "" && (err != nil || string(text) != "#!/bin/sh\n") || want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), home)) {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
}

// TestUnreadableScripts: the error names the owner of a file or folder that this user may not use.
func TestUnreadableScripts(t *testing.T) {
	home := t.TempDir()
	for _, folder := range []string{home, filepath.Dir(home)} { // t.TempDir has made both
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, folder := range []string{"open", "closed"} {
		if err := os.Mkdir(filepath.Join(home, folder), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, folder, "run.sh"), []byte("#!/bin/sh\n"), 0o200); err != nil {
			t.Fatal(err)
		}
	}
	closed := filepath.Join(home, "closed")
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(closed, 0o700)
	owner, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 { // root may read everything
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := syscall.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer syscall.Setfsuid(0)
	}
	for path, want := range map[string]string{
		filepath.Join(home, "open/run.sh"): "permission denied: the file belongs to " + owner.Username + ", who can run 'chmod a+r " + home + "/open/run.sh'; ",
		filepath.Join(closed, "run.sh"):    "permission denied: folder " + closed + " belongs to " + owner.Username + ", who can run 'chmod a+x " + closed + "'; ",
	} {
		if _, err := readScript(home, path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "read the script "+path) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
}

// TestPrepareJob also checks that a working directory outside the roots is refused.
func TestPrepareJob(t *testing.T) {
	home := t.TempDir()
	p := preparer{roots: []string{home}, state: filepath.Join(home, "state")}
	object := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"uid": "u1", "namespace": "lab", "name": "cow"}}}
	job, err := p.prepare(t.Context(), object, kinds.Request{Script: []byte("#!/bin/sh\ntrue\n"), Partition: "main"})
	if err != nil || !strings.Contains(strings.Join(job.Options, " "), "--partition=main") {
		t.Errorf("got %+v, %v", job, err)
	}
	if _, err := p.prepare(t.Context(), object, kinds.Request{Script: []byte("#!/bin/sh\ntrue\n"), Dir: "/elsewhere"}); err == nil || !strings.Contains(err.Error(), "outside the folders") {
		t.Error(err)
	}
}

// TestPrepareResults: results need an image, and a volume of a permitted type.
func TestPrepareResults(t *testing.T) {
	home := t.TempDir()
	object := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"uid": "u1", "namespace": "lab", "name": "cow"}}}
	request := kinds.Request{Script: []byte("#!/bin/sh\ntrue\n"), Results: &kinds.Results{From: "cow.out", Volume: map[string]any{"name": "data", "hostPath": map[string]any{"path": "/etc"}}}}
	p := preparer{roots: []string{home}, state: filepath.Join(home, "state")}
	for _, test := range []struct {
		image, want string
		volumes     []string
	}{
		{"", "--results-image", nil}, {"busybox", "--results-volume hostPath", []string{"persistentVolumeClaim"}}, {"busybox", "", []string{"hostPath"}},
	} {
		p.image, p.volumes = test.image, test.volumes
		if _, err := p.prepare(t.Context(), object, request); test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: %v", test, err)
		}
	}
	if err := (Results{Volumes: []string{"secret"}}).Check(); err == nil || !strings.Contains(err.Error(), "there are cephfs,") {
		t.Error(err)
	}
}

// TestSourceOfResults: results are collected although the image and a bind of the job are gone, but
// neither from a working directory outside the roots nor into a volume that is not permitted.
func TestSourceOfResults(t *testing.T) {
	home := t.TempDir()
	c := collector{preparer: preparer{roots: []string{home}, image: "busybox", volumes: []string{"persistentVolumeClaim"}}, roots: []string{"/scratch"}}
	source := func(kind, volume string, spec map[string]any) (results.Source, error) {
		spec["results"] = map[string]any{"from": "out", "mount": map[string]any{"name": "data", volume: map[string]any{}}}
		request, err := kinds.Read(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "wlm.sylabs.io/v1alpha1", "kind": kind, "metadata": map[string]any{"name": "cow"}, "spec": spec,
		}})
		if err != nil {
			return results.Source{}, err
		}
		got, _, err := c.source(request)
		return got, err
	}
	const claim = "persistentVolumeClaim"
	gone := map[string]any{"image": filepath.Join(home, "gone.sif"), "options": map[string]any{"binds": []any{filepath.Join(home, "gone") + ":/data"}}}
	if got, err := source("WlmJob", claim, gone); err != nil || got.Path != filepath.Join(home, "out") || !slices.Equal(got.Roots, []string{home, "/scratch"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	batch := map[string]any{"batch": "#!/bin/sh\n#SBATCH --chdir=below\n"}
	if got, err := source("SlurmJob", claim, batch); err != nil || got.Path != filepath.Join(home, "below/out") {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := source("SlurmJob", "hostPath", batch); err == nil || !strings.Contains(err.Error(), "--results-volume hostPath") {
		t.Error(err)
	}
	if _, err := source("SlurmJob", claim, map[string]any{"batch": "#!/bin/sh\n#SBATCH --chdir=/etc\n"}); err == nil || !strings.Contains(err.Error(), "outside the folders") {
		t.Error(err)
	}
}

func TestPrepareInputs(t *testing.T) {
	home := t.TempDir()
	if err := os.Symlink("/etc", filepath.Join(home, "link")); err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"uid": "u1", "namespace": "lab", "name": "cow"}}}
	p := preparer{roots: []string{home}, state: filepath.Join(home, "state"), volumes: []string{"hostPath"}}
	for _, test := range []struct{ image, to, volume, want string }{
		{"", "in", "hostPath", "spec.prepare needs a pod that mounts the volume: start"},
		{"busybox", "in", "secret", "spec.prepare.mount: a volume of type secret is not permitted here"},
		{"busybox", "link/in", "hostPath", "spec.prepare.to: /etc/in is outside the folders that objects may use"},
		{"busybox", "..", "hostPath", "is outside the folders that objects may use"},
		{"busybox", ".", "hostPath", ""}, {"busybox", "a/b", "hostPath", ""}, {"busybox", home + "/a", "hostPath", ""},
	} {
		p.image = test.image
		_, err := p.prepare(t.Context(), object, kinds.Request{Script: []byte("#!/bin/sh\ntrue\n"), Inputs: &kinds.Inputs{To: test.to, Volume: map[string]any{"name": "data", test.volume: map[string]any{}}}})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func TestNamed(t *testing.T) {
	for name, want := range map[string]bool{"cow": true, "slurmjob/cow": true, "SlurmJob/cow": true, "slurmjobs/cow": true, "bridgejob/cow": false, "fox": false} {
		if got := named(kinds.SlurmJob, "cow", []string{name}); got != want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// TestNoSlurm: a host without Slurm's commands is refused at once.
func TestNoSlurm(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := Run(t.Context(), Options{Config: &rest.Config{Host: "127.0.0.1:1"}, State: t.TempDir()})
	if err == nil || !strings.HasSuffix(err.Error(), "start 'berth slurm-jobs' on a host with Slurm's commands") {
		t.Error(err)
	}
}
