package system

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/bench/internal/sequence"
	"berth.dev/berth/bench/internal/step"
)

// job submits a job for each trial, from the machine of the bench. The cost of a
// site's network or image is then a difference of options.
type job struct {
	place Place
	jobOptions
}

// jobOptions holds sbatch's options for the measured job, srun's options for its steps, and
// sbatch's options for the other job, whose steps alternate with these (sequence.Steps).
type jobOptions struct{ options, step, outside []string }

func newJob(p Place, o map[string]string) *job {
	words := func(text string) []string {
		all := strings.Fields(text)
		if p.StepImage != "" {
			all = replace(all, imageHere, p.StepImage)
		}
		return all
	}
	return &job{p, jobOptions{words(o["options"]), words(o["step"]), words(o["outside"])}}
}

// imageHere stands for the directory that is the image of steps.
const imageHere = "{image}"

// Check submits a job with one task, because only Slurm and its plugins know
// whether the options are understood and the image is valid.
func (j *job) Check(ctx context.Context) (map[string]string, error) {
	if os.Getenv("SLURM_JOB_ID") != "" {
		return nil, errors.New("this system submits a job for each trial: run 'berth bench run --local' on a login node, not in a job")
	}
	if slices.ContainsFunc(j.step, func(word string) bool { return strings.Contains(word, imageHere) }) {
		return nil, errors.New("the options of steps need an image: name its directory, which all hosts see, with --step-image")
	}
	if _, err := exec.LookPath("sbatch"); err != nil {
		return nil, errors.New("there is no Slurm: sbatch is missing")
	}
	versions, err := (&bare{unpacked{j.place}}).Check(ctx)
	if err != nil {
		return nil, err
	}
	version, err := j.place.ask(ctx, "sbatch", "--version")
	if err != nil {
		return nil, err
	}
	versions["slurm"] = strings.TrimPrefix(version, "slurm ")
	_, err = j.place.ask(ctx, slices.Concat([]string{"srun", "--quiet", "-N1", "-n1"}, j.options, j.step, []string{"true"})...)
	return versions, err
}

// Prepare and Close do nothing, because the site provides the images of steps.
func (j *job) Prepare(context.Context) error { return nil }
func (j *job) Close(context.Context) error   { return nil }

// jobShell submits a job, waits until its command and the job have ended, and
// prints the command's output. It queries the job's state rarely; the end of the
// command shows in the current folder. sbatch --wait would poll every ten
// seconds.
const jobShell = `set -u
to=$(mktemp -d -p "$PWD" berth-bench-job-XXXXXX) || exit
id=
over() { [ -z "$id" ] || scancel --quiet "$id"; rm -rf "$to"; }
trap over EXIT
trap 'exit 143' TERM INT HUP
there() {
	state=$(squeue --noheader --jobs "$id" --states all -o %T 2>/dev/null) || return 0 # the controller does not answer; the job may still run
	case "$state" in PENDING | CONFIGURING | RUNNING | SUSPENDED | COMPLETING) ;; *) return 1 ;; esac
}
cat >"$to/script" <<'END'
#!/bin/sh
to=$1
shift
"$@" >"$to/out" 2>"$to/err"
echo $? >"$to/new"
mv "$to/new" "$to/ended"
END
options=$1
shift
set -f
id=$(sbatch --parsable --output="$to/slurm" $options "$to/script" "$to" "$@") || exit
id=${id%%;*}
n=0
while [ ! -e "$to/ended" ]; do
	n=$((n + 1))
	sleep 0.1
	if [ $((n % 20)) = 0 ] && ! there && [ ! -e "$to/ended" ]; then
		echo "the job $id ended before its command: $(cat "$to/slurm")" >&2
		exit 1
	fi
done
while there; do sleep 0.1; done
cat "$to/out"
cat "$to/err" "$to/slurm" >&2
exit "$(cat "$to/ended")"
`

func (j *job) Run(ctx context.Context, task Task) (Output, error) {
	if task.Sequence == nil || task.Sequence.Job == "" || task.Sequence.Job == sequence.Program {
		return Output{}, &Unsupported{"this system measures only the cases of job steps: mpi-init, hpl and steps"}
	}
	what := *task.Sequence
	what.in = j.jobOptions
	text, err := what.spec(what.Job, "", j.place)
	if err != nil {
		return Output{}, err
	}
	return j.place.runSequence(ctx, j.argv(what, text))
}

// argv returns the command that starts a sequence: in a batch script of the job,
// or from here if the sequence submits jobs itself.
func (j *job) argv(what Sequence, spec string) []string {
	if what.Job == sequence.Steps {
		return []string{j.place.Self, step.SequenceArg, spec}
	}
	size := append(sequence.Sized(what.Nodes, j.place.CPUs), "--mem="+strconv.Itoa(j.place.MemoryMB))
	return []string{"sh", "-c", jobShell, "sh", strings.Join(append(size, j.options...), " "), j.place.Self, step.SequenceArg, spec}
}
