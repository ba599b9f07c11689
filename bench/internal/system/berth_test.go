package system

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/window"
)

// TestOwnExitCode: the error has the exit codes of the task and of berth.
func TestOwnExitCode(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{
		"self":  `until [ "$1" = -- ]; do shift; done; shift; exec "$@"`,
		"berth": `cat >/dev/null; printf '%s\n' '` + taskMark + `' no '` + endedMark + `3' '` + taskMark + `' yes '` + endedMark + `0'; exit 1`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := &berth{program: filepath.Join(dir, "berth"), place: Place{Self: filepath.Join(dir, "self"), Timeout: time.Minute}}
	results := b.RunTogether(t.Context(), []Task{{Args: []string{"no"}}, {Args: []string{"yes"}}})
	if err := results[0].Err; err == nil || !strings.HasPrefix(err.Error(), "exit code 3: no") || !strings.Contains(err.Error(), "; the whole: exit status 1") {
		t.Errorf("got %v", err)
	}
	if r := results[1]; r.Err != nil || r.Output.Stdout != "yes\n" {
		t.Errorf("the other: %+v", r)
	}
}

// TestWindowInAFolder: the machine's counters cover only the task, even if the
// task has a separate cluster.
func TestWindowInAFolder(t *testing.T) {
	dir := t.TempDir()
	line := func(word string, up int) string {
		return fmt.Sprintf("%s%s 2 %d cpu 0 0 0 0 0 0 0 0 0 0", window.Mark, word, up)
	}
	said := strings.Join([]string{"[n] starts", taskMark, line("before", 100), "{}", "", line("after", 101), endedMark + "0"}, "\n")
	for name, script := range map[string]string{
		"self":  `until [ "$1" = -- ]; do shift; done; shift; exec "$@"`,
		"berth": "cat >/dev/null; cat <<'E'\n" + said + "\nE",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := &berth{program: filepath.Join(dir, "berth"), place: Place{Self: filepath.Join(dir, "self"), Timeout: time.Minute}}
	out, err := b.Run(t.Context(), Task{Args: []string{"fio"}, Folder: EmptyDir, Window: true})
	if err != nil || strings.TrimSpace(out.Stdout) != "{}" || out.Step.Window == nil || out.Step.Window.Busy != 2 {
		t.Errorf("%+v, %v", out, err)
	}
}

// TestVersions: builds of one version are distinguished, and a missing program
// is reported with the command that makes it.
func TestVersions(t *testing.T) {
	dir := t.TempDir()
	put := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put("image", "")
	b := &berth{name: "old", program: filepath.Join(dir, "bin/berth-other"), place: Place{Archive: filepath.Join(dir, "image"), Berth: filepath.Join(dir, "bin/berth-other")}}
	if _, err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "make -C test/bench stargz") {
		t.Errorf("no program: %v", err)
	}
	put("bin/berth-other", `[ "$*" = version ] && printf 'berth 1\nkubernetes v2\n'`)
	if _, err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "libexec/berth/containerd") {
		t.Errorf("no other programs: %v", err)
	}
	put("libexec/berth/containerd", `printf 'stargz-snapshotter v3\ncontainerd example.org/containerd v4\n'`)
	put("libexec/berth/cni/host-local", "")
	if err := os.Symlink("../../image", filepath.Join(dir, "libexec/berth/link")); err != nil {
		t.Fatal(err)
	}
	digests := map[string]bool{}
	for _, change := range []string{"bin/berth-other", "libexec/berth/cni/host-local", "image", "none"} {
		got, err := b.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		digests[got["programs of old"]] = true
		delete(got, "programs of old")
		if want := map[string]string{"berth": "1", "kubernetes": "v2", "stargz-snapshotter": "v3", "containerd": "v4"}; !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		text, err := os.ReadFile(filepath.Join(dir, change))
		if err == nil {
			put(change, strings.TrimPrefix(string(text), "#!/bin/sh\n")+"\n# another build")
		}
	}
	if len(digests) != 4 {
		t.Errorf("four builds have %d digests", len(digests))
	}
	// Beside another berth, versions are the system's, too.
	b.place.Berth = "berth"
	if got, err := b.Check(t.Context()); err != nil || got["berth of old"] != "1" || got["containerd of old"] != "v4" || got["berth"] != "" || got["programs of old"] == "" {
		t.Errorf("got %v, %v", got, err)
	}
	b.place.Archive = filepath.Join(dir, "nothing")
	if _, err := b.Check(t.Context()); err == nil {
		t.Error("no image of the programs")
	}
}

// TestPhases reads the lines that berth prints without a terminal, among others.
func TestPhases(t *testing.T) {
	const said = "srun: job 7 queued\nberth:   0.12s  namespaces ready\nberth:   0.61s  control plane ready\nberth: the image is old\nberth:  10.70s  workload applied\n"
	want := []record.Value{
		{Name: "until namespaces ready", Unit: "s", Better: "lower", Value: 0.12},
		{Name: "until control plane ready", Unit: "s", Better: "lower", Value: 0.61},
		{Name: "until workload applied", Unit: "s", Better: "lower", Value: 10.7},
	}
	if got := phases(said); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}
