package process

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/controller"
	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/objectstore"
	"berth.dev/berth/internal/slurmjobs/results"
	"berth.dev/berth/internal/testutil"
)

// bridgeJob returns a BridgeJob with a status.
func bridgeJob(spec, status map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "bridgejob.ibm.com/v1alpha1", "kind": "BridgeJob", "metadata": map[string]any{"uid": "u1", "namespace": "lab", "name": "train"},
		"spec": spec, "status": status,
	}}
}

// s3Fixture returns a preparer whose objects may use an S3 server. Its home is a root.
func s3Fixture(t *testing.T, address string) (p preparer, home string) {
	t.Helper()
	home = t.TempDir()
	endpoints, err := objectstore.New([]string{"http://" + address}, "")
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string]map[string]string{
		"right": {"accesskey": testutil.S3AccessKey, "secretkey": testutil.S3SecretKey + "\n"},
		"wrong": {"accesskey": testutil.S3AccessKey, "secretkey": "wrong"}, "empty": {},
		"broken": {"accesskey": "a\nb", "secretkey": "s"},
	}
	return preparer{roots: []string{home}, state: filepath.Join(home, "state"), storage: storage{endpoints, func(_ context.Context, namespace, name string) (*unstructured.Unstructured, error) {
		switch {
		case name == "hidden":
			return nil, apierrors.NewForbidden(secretsResource.GroupResource(), name, errors.New("no role"))
		case namespace != "lab" || secrets[name] == nil:
			return nil, apierrors.NewNotFound(secretsResource.GroupResource(), name)
		}
		data := map[string]any{}
		for key, value := range secrets[name] {
			data[key] = base64.StdEncoding.EncodeToString([]byte(value))
		}
		return &unstructured.Unstructured{Object: map[string]any{"data": data}}, nil
	}}}, home
}

// foundJob returns a Slurm.Find that finds a job with a number. It finds none for an empty number.
func foundJob(id string) func(context.Context, string) (string, bool, error) {
	return func(context.Context, string) (string, bool, error) { return id, id != "", nil }
}

// TestScriptInS3 also checks which errors reject an object.
func TestScriptInS3(t *testing.T) {
	server := testutil.NewS3Server(t)
	server.Write("scripts", "run.sh", "#!/bin/sh\n#SBATCH --partition=main\n")
	server.Write("scripts", "text", "no script")
	p, _ := s3Fixture(t, server.Address)
	prepare := func(script, secret, endpoint string, upload map[string]any) (queue.Job, error) {
		spec := map[string]any{
			"jobdata":   map[string]any{"jobscript": script, "scriptlocation": "s3"},
			"s3storage": map[string]any{"s3secret": secret, "endpoint": endpoint, "secure": false},
		}
		if upload != nil {
			spec["s3upload"] = upload
		}
		object := bridgeJob(spec, nil)
		request, err := kinds.Read(object)
		if err != nil {
			t.Fatal(err)
		}
		return p.prepare(t.Context(), object, request)
	}
	job, err := prepare("scripts:run.sh", "right", server.Address, nil)
	if err != nil || !strings.Contains(strings.Join(job.Options, " "), "--partition=main") || string(job.UserScript) != "#!/bin/sh\n#SBATCH --partition=main\n" {
		t.Errorf("got %+v, %v", job, err)
	}
	for _, test := range []struct {
		script, secret, endpoint string
		upload                   map[string]any
		again                    bool
		want                     string
	}{
		{"scripts:none", "right", server.Address, nil, false, `read the script scripts:none from S3: the S3 store http://` + server.Address + ` has no object "none" in bucket scripts: upload it`},
		{"none:run.sh", "right", server.Address, nil, false, "has no bucket none: create it"},
		{"scripts:text", "right", server.Address, nil, false, "this does not look like a batch script"},
		{"scripts:run.sh", "wrong", server.Address, nil, false, "check accesskey and secretkey of the Secret"},
		{"scripts:run.sh", "right", "elsewhere:80", nil, false, "start berth with --s3-endpoint http://elsewhere:80"},
		{"scripts:run.sh", "none", server.Address, nil, true, "namespace lab has no Secret none with the credentials for S3: create it, with accesskey and secretkey"},
		{"scripts:run.sh", "empty", server.Address, nil, true, "the Secret empty lacks accesskey and secretkey"},
		{"scripts:run.sh", "broken", server.Address, nil, true, "accesskey or secretkey of the Secret broken contains a line break"},
		{"scripts:run.sh", "hidden", server.Address, nil, true, "'berth slurm-jobs setup --s3-secret hidden'"},
		{"scripts:run.sh", "right", server.Address, map[string]any{"bucket": "b", "files": "a/out,b/out"}, false, "have the same name in S3: rename one of them"},
	} {
		_, err := prepare(test.script, test.secret, test.endpoint, test.upload)
		if err == nil || errors.As(err, new(*controller.Temporary)) != test.again || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v", test, err)
		}
	}
	server.Kill()
	if _, err := prepare("scripts:run.sh", "right", server.Address, nil); !errors.As(err, new(*controller.Temporary)) || !strings.Contains(err.Error(), "is away") {
		t.Error(err)
	}
}

// tear writes a part of a line to the end of a file, as a crash does.
func tear(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString("\n\"torn")
	return errors.Join(err, file.Close())
}

// TestUpload uploads the output and the files of a job, and checks the errors.
func TestUpload(t *testing.T) {
	server := testutil.NewS3Server(t)
	server.Write("results", "other", "")
	p, home := s3Fixture(t, server.Address)
	c := collector{preparer: p, find: foundJob("17"), turn: time.Hour, log: slog.New(slog.DiscardHandler)}
	write := func(path, content string) {
		path = filepath.Join(home, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("state/u1/"+queue.UserScriptName, "#!/bin/sh\n#SBATCH --chdir=work --error=%x-%j.err\n")
	write("work/slurm-17.out", "output")
	write("work/lab.train-17.err", "errors")
	write("work/model/weights", "weights")
	write("logs/data", "data")
	// The number in the status is somebody's forgery.
	ran := map[string]any{"started": "2026-11-28T17:21:03Z", "jobID": "../../1"}
	collect := func(bucket, files string, status map[string]any) (string, error) {
		return c.collect(t.Context(), bridgeJob(map[string]any{
			"jobdata":  map[string]any{"jobscript": "gone:gone", "scriptlocation": "s3"},
			"s3upload": map[string]any{"bucket": bucket, "files": files}, "s3storage": map[string]any{"s3secret": "right", "endpoint": server.Address, "secure": false},
		}, status))
	}
	text, err := collect("results", "model/weights, "+filepath.Join(home, "logs/data"), ran)
	if err != nil || text != "4 files are in bucket results below train/" {
		t.Errorf("got %q, %v", text, err)
	}
	for name, want := range map[string]string{"slurm-17.out": "output", "lab.train-17.err": "errors", "weights": "weights", "data": "data"} {
		if got := server.Read("results", "train/"+name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	// Another call uploads only what has changed.
	server.Write("results", "train/weights", "kept")
	write("logs/data", "more data")
	if text, err := collect("results", "model/weights, "+filepath.Join(home, "logs/data"), ran); err != nil || text != "4 files are in bucket results below train/" {
		t.Errorf("got %q, %v", text, err)
	}
	for name, want := range map[string]string{"weights": "kept", "data": "more data"} {
		if got := server.Read("results", "train/"+name); got != want {
			t.Errorf("again: %s: %q, want %q", name, got, want)
		}
	}
	// After a turn, other objects come first. The next call continues, also with a torn mark.
	write("logs/data", "data again")
	write("model/weights", "weights again")
	c.turn = 0
	_, err = collect("results", filepath.Join(home, "logs/data")+", model/weights", ran)
	if !errors.As(err, new(*controller.Unfinished)) || !strings.HasPrefix(err.Error(), "3 of 4 files are in bucket results; ") {
		t.Errorf("got %v", err)
	}
	if err := tear(filepath.Join(home, "state/u1", uploadedName)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if text, err := collect("results", filepath.Join(home, "logs/data")+", model/weights", ran); err != nil || text != "4 files are in bucket results below train/" {
			t.Errorf("got %q, %v", text, err)
		}
		server.Write("results", "train/weights", "kept")
	}
	if got := server.Read("results", "train/weights"); got != "kept" {
		t.Errorf("got %q: it was uploaded twice", got)
	}
	c.turn = time.Hour
	if text, err := collect("results", "", map[string]any{"jobID": "17"}); err != nil || text != "the job has not run, so there is nothing to upload" {
		t.Errorf("got %q, %v", text, err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(home, "work/link")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		bucket, files  string
		missing, final bool
		want           string
	}{
		{"results", "none", true, false, "2 of 3 files are in bucket results: "},
		{"results", "none", true, false, "have the script write it, or remove it from spec.s3upload.files"},
		{"results", "/etc/passwd", false, true, "outside the folders for results"},
		{"results", "link", false, true, "outside the folders for results"},
		{"results", "model", false, true, "is no regular file of yours"},
		{"results", "a/x,b/x", false, true, "have the same name in S3"},
		{"none", "", false, false, "upload " + filepath.Join(home, "work/slurm-17.out") + " to bucket none: the S3 store http://" + server.Address + " has no bucket none: create it"},
	} {
		_, err := collect(test.bucket, test.files, ran)
		if err == nil || errors.Is(err, os.ErrNotExist) != test.missing || errors.As(err, new(*results.Final)) != test.final || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v", test, err)
		}
	}
	server.Kill()
	write("work/slurm-17.out", "output again")
	if _, err := collect("results", "none", ran); errors.Is(err, os.ErrNotExist) || !errors.As(err, new(*objectstore.Away)) {
		t.Errorf("the job's files would be given up soon: %v", err)
	}
	server.Start()
}

// TestMarks uploads files that look like uploaded ones, and files whose marks cannot be written.
func TestMarks(t *testing.T) {
	server := testutil.NewS3Server(t)
	server.Write("results", "other", "")
	p, home := s3Fixture(t, server.Address)
	var log bytes.Buffer
	c := collector{preparer: p, find: foundJob("17"), turn: time.Hour, log: slog.New(slog.NewTextHandler(&log, nil))}
	modified := time.Now().Add(-time.Hour)
	write := func(path, content string) {
		path = filepath.Join(home, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, modified, modified)); err != nil {
			t.Fatal(err)
		}
	}
	write("state/u1/"+queue.UserScriptName, "#!/bin/sh\n#SBATCH --output=/dev/null\n")
	collect := func(files string) {
		t.Helper()
		_, err := c.collect(t.Context(), bridgeJob(map[string]any{
			"jobdata":  map[string]any{"jobscript": "gone:gone", "scriptlocation": "s3"},
			"s3upload": map[string]any{"bucket": "results", "files": files}, "s3storage": map[string]any{"s3secret": "right", "endpoint": server.Address, "secure": false},
		}, map[string]any{"started": "2026-11-28T17:21:03Z"}))
		if err != nil {
			t.Error(err)
		}
	}
	has := func(name, want string) {
		t.Helper()
		if got := server.Read("results", "train/"+name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	write("a/w", "one")
	write("b/w", "two")
	for _, path := range []string{"a/w", "b/w", "a/w"} {
		collect(path)
		content, err := os.ReadFile(filepath.Join(home, path))
		if err != nil {
			t.Fatal(err)
		}
		has("w", string(content))
	}
	write("a/w", "new")
	collect("a/w")
	has("w", "new")
	server.Write("results", "train/w", "kept")
	collect("a/w")
	has("w", "kept")

	// Without marks, an upload has no turns, which would begin with the same file.
	marks := filepath.Join(home, "state/u1", uploadedName)
	if err := errors.Join(os.Remove(marks), os.Symlink("/none/marks", marks)); err != nil {
		t.Fatal(err)
	}
	c.turn = 0
	write("b/x", "three")
	write("b/y", "four")
	collect("a/w,b/x,b/y")
	for name, want := range map[string]string{"w": "new", "x": "three", "y": "four"} {
		has(name, want)
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "free space in --state-dir") {
		t.Errorf("got %s", text)
	}
	if err := errors.Join(os.Remove(marks), os.Mkdir(marks, 0o700)); err != nil {
		t.Fatal(err)
	}
	write("b/y", "five")
	collect("a/w,b/y")
	has("y", "five")
}

// TestGrownFile: the mark of a file that grows after it was opened has the size that was uploaded.
func TestGrownFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("grown"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	uploaded, err := newMark("s3", path, file, 3)
	next, nextErr := newMark("s3", path, file, 5)
	if err := errors.Join(err, nextErr); err != nil || uploaded == next {
		t.Errorf("got %v, %v", uploaded, err)
	}
}
