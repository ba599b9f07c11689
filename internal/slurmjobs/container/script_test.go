package container

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/script"
)

// site is a root with an image.
type site struct {
	*testing.T
	Options
	image string
}

func newSite(t *testing.T) site {
	root := t.TempDir()
	image := filepath.Join(root, "lolcow_latest.sif")
	if err := os.WriteFile(image, []byte("SIF"), 0o600); err != nil {
		t.Fatal(err)
	}
	return site{t, Options{Berth: "/opt/berth", Roots: []string{root}}, image}
}

// folder makes a folder for a bind.
func (s site) folder(path string) {
	s.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		s.Fatal(err)
	}
}

// run runs the batch script of a container with a program in the place of berth, and returns the
// program's arguments and the Job in its standard input.
func (s site) run(nodes int64, c kinds.Container) ([]string, batchv1.Job) {
	s.Helper()
	tools := s.TempDir()
	s.Berth = filepath.Join(tools, "it's \"berth\"")
	record := "#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done >'" + tools + "/words'\ncat >'" + tools + "/input'\n"
	if err := os.WriteFile(s.Berth, []byte(record), 0o700); err != nil {
		s.Fatal(err)
	}
	text, err := Script("lab/cow", nodes, c, s.Options)
	if err != nil {
		s.Fatal(err)
	}
	command := exec.CommandContext(s.Context(), "/bin/sh")
	command.Dir = tools
	command.Stdin = strings.NewReader(string(text))
	if output, err := command.CombinedOutput(); err != nil || len(output) > 0 {
		s.Fatalf("%v: %s\n%s", err, output, text)
	}
	words, err := os.ReadFile(filepath.Join(tools, "words"))
	if err != nil {
		s.Fatal(err)
	}
	input, err := os.ReadFile(filepath.Join(tools, "input"))
	if err != nil {
		s.Fatal(err)
	}
	var job batchv1.Job
	decoder := json.NewDecoder(strings.NewReader(string(input)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&job); err != nil {
		s.Fatalf("%v: %s", err, input)
	}
	entries, err := os.ReadDir(tools)
	if err != nil || len(entries) != 3 {
		s.Errorf("the script left %v, %v", entries, err)
	}
	return strings.Split(strings.TrimSuffix(string(words), "\x00"), "\x00"), job
}

func TestImageFromAFile(t *testing.T) {
	s := newSite(t)
	root := s.Roots[0]
	s.folder(root + "/in")
	words, job := s.run(0, kinds.Container{File: "lolcow_latest.sif", Pull: "library://lolcow", HostName: "cow", NoPrivileges: true, Binds: []kinds.Bind{
		{Source: root + "/in", Target: "/in", ReadOnly: true},
	}})
	if want := []string{"run", "--quiet", "--no-pull", "--image=wlmjob=" + s.image, "--file=-"}; !reflect.DeepEqual(words, want) {
		t.Errorf("got %q, want %q", words, want)
	}
	pod := job.Spec.Template.Spec
	main := pod.Containers[0]
	if main.Image != "wlmjob" || main.WorkingDir != root || pod.Hostname != "cow" || pod.Affinity != nil || *job.Spec.Completions != 1 || *job.Spec.BackoffLimit != 0 {
		t.Errorf("got %+v", job)
	}
	if security := main.SecurityContext; *security.AllowPrivilegeEscalation || security.Capabilities.Drop[0] != "ALL" || *security.RunAsUser != 0 {
		t.Errorf("got %+v", security)
	}
	if want := []corev1.VolumeMount{{Name: "bind-0", MountPath: "/in", ReadOnly: true}, {Name: "bind-1", MountPath: root}}; !reflect.DeepEqual(main.VolumeMounts, want) {
		t.Errorf("got %+v", main.VolumeMounts)
	}
	for i, want := range []string{root + "/in", root} {
		if got := pod.Volumes[i].HostPath.Path; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestSeveralNodesRunOneContainerEach(t *testing.T) {
	words, job := newSite(t).run(3, kinds.Container{Reference: "docker.io/library/python:3.13"})
	if want := []string{"run", "--quiet", "--file=-"}; !reflect.DeepEqual(words, want) {
		t.Errorf("got %q, want %q", words, want)
	}
	spec := job.Spec
	rules := spec.Template.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if *spec.Completions != 3 || *spec.Parallelism != 3 || *spec.CompletionMode != batchv1.IndexedCompletion || len(rules) != 1 ||
		!reflect.DeepEqual(rules[0].LabelSelector.MatchLabels, spec.Template.Labels) {
		t.Errorf("got %+v", spec)
	}
	// The image may name another user, who could not write to the user's folders.
	if security := spec.Template.Spec.Containers[0].SecurityContext; *security.RunAsUser != 0 || *security.RunAsGroup != 0 {
		t.Errorf("got %+v", security)
	}
}

// TestSizeAndNameAreOptionsOfSbatch: the guard of scripts accepts the script.
func TestSizeAndNameAreOptionsOfSbatch(t *testing.T) {
	s := newSite(t)
	text, err := Script("lab/cow", 2, kinds.Container{File: s.image, CPUs: 4, MemoryMB: 1000}, s.Options)
	if err != nil {
		t.Fatal(err)
	}
	job, err := script.Build(script.Description{UID: "u1", Object: "lab/cow", Script: text, State: t.TempDir(), Roots: s.Roots, Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	want := "--ignore-pbs --job-name=lab.cow --ntasks-per-node=1 --cpus-per-task=4 --mem=1512 --nodes=2 --chdir=" + s.Roots[0]
	if got := strings.Join(job.Options, " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestHostileValuesStayValues: paths of an object reach berth as they are, whatever they mean to a
// shell or to sbatch.
func TestHostileValuesStayValues(t *testing.T) {
	for _, name := range []string{
		"$(touch pwned)", "`touch pwned`", "a'; touch pwned; '", `a"; touch pwned; "`, `back\slash\`, "--image=x", "-v", "ü ö", "a=b", "%j", "END_OF_MANIFESTS", "x:y",
	} {
		s := newSite(t)
		image, folder := filepath.Join(s.Roots[0], name), filepath.Join(s.Roots[0], "data", name)
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s.folder(folder)
		words, job := s.run(1, kinds.Container{File: name, Binds: []kinds.Bind{{Source: folder, Target: "/in/" + name}}})
		if words[3] != "--image=wlmjob="+image || len(words) != 5 {
			t.Errorf("%s: got %q", name, words)
		}
		spec := job.Spec.Template.Spec
		if spec.Volumes[0].HostPath.Path != folder || spec.Containers[0].VolumeMounts[0].MountPath != "/in/"+name {
			t.Errorf("%s: got %+v", name, spec)
		}
	}
}

func TestBindsOutsideTheRoots(t *testing.T) {
	s := newSite(t)
	if err := os.Symlink("/etc", filepath.Join(s.Roots[0], "link")); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"/", "/etc", s.Roots[0] + "/link/ssh", s.Roots[0] + "-other"} {
		_, err := Script("lab/cow", 1, kinds.Container{Reference: "a", Binds: []kinds.Bind{{Source: source, Target: "/x"}}}, s.Options)
		if err == nil || !strings.HasPrefix(err.Error(), "spec.options.binds: ") || !strings.Contains(err.Error(), "outside the folders that objects may use") {
			t.Errorf("%s: got %v", source, err)
		}
	}
}

// TestBindInsteadOfTheWorkingDirectory: no path is mounted twice, and / never.
func TestBindInsteadOfTheWorkingDirectory(t *testing.T) {
	s := newSite(t)
	s.folder(s.Roots[0] + "/in")
	_, job := s.run(1, kinds.Container{File: s.image, Binds: []kinds.Bind{{Source: s.Roots[0] + "/in", Target: s.Roots[0]}}})
	if got := job.Spec.Template.Spec.Volumes; len(got) != 1 || got[0].HostPath.Path != s.Roots[0]+"/in" {
		t.Errorf("got %+v", got)
	}
	s.Roots = []string{"/"}
	if _, job = s.run(1, kinds.Container{File: s.image}); len(job.Spec.Template.Spec.Volumes) != 0 {
		t.Errorf("got %+v", job.Spec.Template.Spec.Volumes)
	}
}

// TestBindsThatExist: no node makes an empty folder for a bind that it does not see.
func TestBindsThatExist(t *testing.T) {
	s := newSite(t)
	root := s.Roots[0]
	s.folder(root + "/in")
	_, job := s.run(1, kinds.Container{File: s.image, Binds: []kinds.Bind{{Source: root + "/in", Target: "/in"}, {Source: s.image, Target: "/file"}}})
	for i, want := range []corev1.HostPathType{corev1.HostPathDirectory, corev1.HostPathFile, corev1.HostPathDirectory} {
		if got := job.Spec.Template.Spec.Volumes[i].HostPath.Type; got == nil || *got != want {
			t.Errorf("volume %d: got %v, want %s", i, got, want)
		}
	}
	pipe := filepath.Join(root, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]string{
		root + "/missing": "/missing: no such file or directory: make the folder or the file, and create the object again",
		s.image + "/in":   "not a directory",
		pipe:              "/pipe is neither a file nor a folder",
	} {
		_, err := Script("lab/cow", 1, kinds.Container{File: s.image, Binds: []kinds.Bind{{Source: source, Target: "/in"}}}, s.Options)
		if err == nil || !strings.HasPrefix(err.Error(), "spec.options.binds: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", source, err, want)
		}
	}
}

// TestMissingImages: the error contains the remedy and the error of the system.
func TestMissingImages(t *testing.T) {
	s := newSite(t)
	root := s.Roots[0]
	pipe := filepath.Join(root, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		container kinds.Container
		want      string
		errno     syscall.Errno
	}{
		{kinds.Container{Image: "library://fox", File: "fox_latest.sif", Pull: "library://fox"}, "call 'apptainer pull library://fox' in " + root + ", and create the object again", syscall.ENOENT},
		{kinds.Container{Image: "fox.sif", File: "fox.sif"}, `spec.image "fox.sif": stat ` + root + "/fox.sif: no such file or directory: give the path of a SIF file", syscall.ENOENT},
		{kinds.Container{Image: "x", File: "lolcow_latest.sif/x"}, "not a directory", syscall.ENOTDIR},
		{kinds.Container{Image: pipe, File: pipe}, pipe + " is neither a file nor a folder", 0},
		{kinds.Container{Image: "/dev/zero", File: "/dev/zero"}, "/dev/zero is neither a file nor a folder", 0},
	} {
		_, err := Script("lab/cow", 1, test.container, s.Options)
		if err == nil || !strings.Contains(err.Error(), test.want) || test.errno != 0 && !errors.Is(err, test.errno) {
			t.Errorf("%s: got %v, want %s", test.container.Image, err, test.want)
		}
	}
}
