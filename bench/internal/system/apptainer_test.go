package system

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/sequence"
)

// fakeApptainer prints prescribed output, makes files, and notes its
// environment.
const fakeApptainer = `case "$*" in
--version) echo apptainer version 1.4.5 ;;
*" build "*) echo "$5" >>"$DIR/built"; case $5 in oci:*) ls "${5#oci:}" >>"$DIR/built" ;; esac; : >"$4" ;;
"exec "*) echo "INFO:    $SAYS" >&2 ;;
*" exec "*) echo "$APPTAINER_CONFIGDIR $*" ;;
esac`

// scripted returns a driver with that program, and a bench that starts its
// arguments.
func scripted(t *testing.T) (a *apptainer, dir string) {
	t.Helper()
	dir, env := programs(t, map[string]string{
		"apptainer": fakeApptainer, "mksquashfs": "", "self": `[ "$1" != sequence ] || { printf '%s\n' "$2"; exit; }
while [ "$1" != -- ]; do shift; done; shift; exec "$@"`,
	})
	for _, setting := range env {
		name, value, _ := strings.Cut(setting, "=")
		t.Setenv(name, value)
	}
	shared := filepath.Join(dir, "shared")
	if err := os.Mkdir(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	place := Place{Self: filepath.Join(dir, "bin", "self"), Shared: shared, CPUs: 2, Timeout: time.Minute}
	// One archive of docker save, and one OCI archive.
	for to, name := range map[*string]string{&place.Archive: "manifest.json", &place.MPIArchive: "oci-layout"} {
		*to = filepath.Join(dir, name+".tar")
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if said, err := exec.Command("tar", "-C", dir, "-cf", *to, name).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
	}
	return &apptainer{place: place, program: "apptainer"}, dir
}

// TestApptainerPrograms: programs run in a SIF file that was made before, with the storage
// that they request, and nothing stays.
func TestApptainerPrograms(t *testing.T) {
	a, dir := scripted(t)
	if versions, err := a.Check(t.Context()); err != nil || versions["apptainer"] != "1.4.5" {
		t.Errorf("versions %v, %v", versions, err)
	}
	if err := a.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if built, err := os.ReadFile(filepath.Join(dir, "built")); err != nil || string(built) != "docker-archive:"+a.place.Archive+"\n" {
		t.Errorf("made of %q, %v", built, err)
	}
	homes, err := filepath.Glob(filepath.Join(dir, "tmp", "berth-bench-apptainer-*"))
	if err != nil || len(homes) != 1 {
		t.Fatalf("folders %v, %v", homes, err)
	}
	home := homes[0]
	for folder, want := range map[Folder]string{
		NoFolder: "--quiet exec  FILE fio it's",
		Scratch:  "--quiet exec --bind FOLDER:/data FILE fio /data/it's",
		EmptyDir: "--quiet exec --workdir FOLDER --scratch /data FILE fio /data/it's",
		Root:     "--quiet exec --overlay FOLDER FILE fio /./it's",
	} {
		what := "it's"
		if folder != NoFolder {
			what = FolderHere + "/it's"
		}
		out, err := a.Run(t.Context(), Task{Args: []string{"fio", what}, Folder: folder})
		got := strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(out.Stdout), home+"/config "), home+"/image.sif", "FILE")
		for _, word := range strings.Fields(got) {
			if path, _, _ := strings.Cut(word, ":"); strings.HasPrefix(path, filepath.Join(dir, "tmp", "berth-bench-")) {
				got = strings.ReplaceAll(got, path, "FOLDER")
			}
		}
		if err != nil || got != strings.ReplaceAll(want, "  ", " ") {
			t.Errorf("%q: %q, %v, want %q", folder, got, err, want)
		}
	}
	out, err := a.Run(t.Context(), Task{Args: []string{"fio"}, Window: true})
	if err != nil || !strings.Contains(out.Stdout, "image.sif sh -c ") {
		t.Errorf("nobody looks what the machine does: %q, %v", out.Stdout, err)
	}
	for name, task := range map[string]Task{
		"claim": {Folder: Claim}, "pod": {Server: &Server{At: InPod}}, "Service": {Server: &Server{At: InService}},
		"cluster": {Sequence: &Sequence{Cluster: sequence.Requirements}}, "job": {Sequence: &Sequence{Job: sequence.Program}},
		"mpirun": {Sequence: &Sequence{Job: sequence.MPISteps, MPI: true, Parameters: map[string]string{"hosts-launcher": "mpirun"}}},
	} {
		if _, err := a.Run(t.Context(), task); !unsupported(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "tmp")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestApptainerMPI: ranks run in a SIF file that all hosts see, and that is made once.
func TestApptainerMPI(t *testing.T) {
	a, dir := scripted(t)
	task := Task{Sequence: &Sequence{Job: sequence.MPISteps, MPI: true, Nodes: 2, Parameters: map[string]string{"hosts-launcher": "srun"}}}
	for range 2 {
		out, err := a.Run(t.Context(), task)
		var spec sequence.Spec
		if err == nil {
			err = json.Unmarshal([]byte(out.Stdout), &spec)
		}
		if err != nil || len(spec.Through) != 6 || spec.Through[4] != "apptainer" || filepath.Dir(spec.Through[5]) != a.place.Shared {
			t.Fatalf("through %q, %v", spec.Through, err)
		}
		said, err := exec.Command(spec.Through[0], append(spec.Through[1:], "hpcc")...).Output()
		if want := spec.Through[5] + "/config --quiet exec " + spec.Through[5] + "/image.sif hpcc\n"; err != nil || string(said) != want {
			t.Errorf("ranks: %q, %v, want %q", said, err, want)
		}
		if _, err := os.Stat(filepath.Join(spec.Through[5], "image.sif")); err != nil {
			t.Error(err)
		}
	}
	if built, err := os.ReadFile(filepath.Join(dir, "built")); err != nil || strings.Count(string(built), "oci:") != 1 || !strings.HasSuffix(string(built), "/oci\noci-layout\n") {
		t.Errorf("made of %q, %v", built, err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, folder := range []string{a.place.Shared, filepath.Join(dir, "tmp")} {
		if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
	a.place.MPIArchive = filepath.Join(dir, "nothing.tar")
	if _, err := a.Run(t.Context(), task); !unsupported(err) {
		t.Errorf("without its image: %v", err)
	}
	a.place.MPIArchive = a.place.Self // not an archive
	if _, err := a.Run(t.Context(), task); err == nil || unsupported(err) {
		t.Errorf("of a file that is not an image: %v", err)
	}
	if left, err := os.ReadDir(a.place.Shared); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestApptainerUnpacks: if each start would unpack the file, nothing is measured, and the
// message has the remedy.
func TestApptainerUnpacks(t *testing.T) {
	a, _ := scripted(t)
	t.Setenv("SAYS", unpacking+"...")
	if err := a.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Run(t.Context(), Task{Args: []string{"date"}}); !unsupported(err) || !strings.Contains(err.Error(), "apt-get install squashfuse") {
		t.Errorf("got %v", err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestApptainerMissing: the message about a missing program names its package. A folder
// with Apptainer also has its helper programs.
func TestApptainerMissing(t *testing.T) {
	a, dir := scripted(t)
	squash := filepath.Join(dir, "bin", "mksquashfs")
	moved := filepath.Join(dir, "own")
	if err := os.Mkdir(moved, 0o755); err != nil {
		t.Fatal(err)
	}
	// A PATH with only the shell's programs, as the machine may have the package.
	small := filepath.Join(dir, "small")
	if err := os.Mkdir(small, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"sh", "id"} {
		path, err := exec.LookPath(program)
		if err == nil {
			err = os.Symlink(path, filepath.Join(small, program))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{squash, filepath.Join(dir, "bin", "apptainer")} {
		if err := os.Rename(name, filepath.Join(moved, filepath.Base(name))); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", small)
	if _, err := a.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "test/bench/apptainer FOLDER") {
		t.Errorf("without the program: %v", err)
	}
	a.program = filepath.Join(moved, "apptainer")
	if _, err := a.Check(t.Context()); err != nil {
		t.Errorf("from a folder of its own: %v", err)
	}
	if err := os.Remove(filepath.Join(moved, "mksquashfs")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "apt-get install squashfs-tools") {
		t.Errorf("without mksquashfs: %v", err)
	}
}

// TestEndedApptainerProgram: the signal that ends a trial reaches Apptainer itself, which
// ends the container.
func TestEndedApptainerProgram(t *testing.T) {
	dir, env := programs(t, map[string]string{"apptainer": `trap 'exit 143' TERM; echo $$ >"$DIR/self"; : >"$DIR/started"; while :; do sleep 0.01; done`})
	a := &apptainer{program: "apptainer"}
	if code, said := ended(t, dir, env, a.script("", execScript(), "sleep")); code != 143 {
		t.Errorf("exit code %d: %s", code, said)
	}
	gone(t, filepath.Join(dir, "self"))
}
