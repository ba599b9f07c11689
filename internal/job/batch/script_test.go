package batch

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestScriptText(t *testing.T) {
	script := Script{
		Name: "my job",
		Options: []Option{
			{Name: "nodes", Value: "1", Words: []string{"-N1"}},
			{Name: "comment", Value: `a "b" \ #c`, Words: []string{"--comment", `a "b" \ #c`}},
			{Name: ":", Words: []string{":"}},
			{Name: "wait", Words: []string{"-W"}},
			{Name: "gpus", Value: "1", Words: []string{"--gpus=1"}},
		},
		Berth: "/opt/it's here/berth", Args: []string{"run", "--file=-"}, Commands: "/opt/slurm/bin",
		Input:       []byte("a: 1\r\nEND_OF_MANIFESTS\nb: $x"),
		CommandLine: []string{"berth", "submit", "-N1", "--", "sh", "-c", "a\nb"},
	}
	want := `#!/bin/sh
#SBATCH --job-name="my job"
#SBATCH -N1
#SBATCH --comment "a \"b\" \\ #c"
#SBATCH hetjob
#SBATCH --gpus=1
# berth submit -N1 -- sh -c 'a b'

berth='/opt/it'\''s here/berth'
if [ ! -x "$berth" ]; then
  echo "berth: node ${SLURMD_NODENAME:-$(hostname)} has no $berth: put berth where all nodes see it, such as your home directory, and submit from there" >&2
  exit 69
fi
command -v srun >/dev/null || PATH=$PATH:/opt/slurm/bin
export PATH
exec "$berth" run --file=- <<'END_OF_MANIFESTS_'
a: 1
END_OF_MANIFESTS
b: $x
END_OF_MANIFESTS_
`
	if got := string(script.Text()); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// A shell runs the script: the program gets its words and its input as they are.
func TestScriptRuns(t *testing.T) {
	program := filepath.Join(t.TempDir(), "a 'program'")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nprintf '<%s>' \"$@\"\ncat\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", "--", "it's", "", "a  b", "$HOME", `\"`, "line\nline", "ü*"}
	input := "$HOME `x` \\ 'y'\n  - z\n"
	shell := exec.CommandContext(t.Context(), "sh")
	shell.Stdin = bytes.NewReader(Script{Name: "x", Berth: program, Args: args, Input: []byte(input)}.Text())
	got, err := shell.Output()
	if want := "<" + strings.Join(args, "><") + ">" + input; err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}

	gone := exec.CommandContext(t.Context(), "sh")
	gone.Stdin = bytes.NewReader(Script{Name: "x", Berth: program + "-gone"}.Text())
	said, _ := gone.CombinedOutput()
	if gone.ProcessState.ExitCode() != missing || !strings.Contains(string(said), program+"-gone") {
		t.Errorf("without the program: %q, exit code %d", said, gone.ProcessState.ExitCode())
	}
}
