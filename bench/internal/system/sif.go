package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/bench/internal/deliver"
)

// deliver makes a SIF file of each image on the first host, in the folder that all hosts
// see. Then it runs the file on all hosts.
func (a *apptainer) deliver(ctx context.Context, images Images) (Output, error) {
	if images.Fresh {
		return Output{}, &Unsupported{"a SIF file has no layers that runs could share"}
	}
	return a.place.deliver(ctx, images, func(d *delivery) (Output, error) {
		if before := d.before(); before != nil {
			if out, err := a.place.run(ctx, before, ""); err != nil {
				return out, fmt.Errorf("run the command before the first image: %w", err)
			}
		}
		all := Output{Submitted: time.Now()}
		var result deliver.Result
		for _, name := range d.images.Names {
			image, err := a.image(ctx, d, name)
			if err != nil {
				return all, fmt.Errorf("deliver %s: %w", name, err)
			}
			result.Images = append(result.Images, image)
			all.Step.CPUSeconds += image.CPU
		}
		text, err := json.Marshal(result)
		all.Stdout, all.First, all.Ended = string(text), time.Now(), time.Now()
		return all, err
	})
}

// withFolder begins a script with a temporary folder, $own, on the host's disk.
// It ends $child and its children whenever the script is ended: a shell that a
// signal ends does not run its exit trap, and a shell that waits for a program
// does not handle signals.
const withFolder = `set -e
child= own=$(mktemp -d)
trap 'code=$?; set +e; [ -z "$child" ] || { kill -- "-$child" 2>/dev/null || kill $child; wait; }; rm -rf "$own"; exit $code' EXIT
trap 'exit 143' TERM INT HUP
`

// pullScript makes a SIF file, and prints two times: when packing begins, and when it ends.
const pullScript = withFolder + `export APPTAINER_TMPDIR="$own/tmp" APPTAINER_CACHEDIR="$2/cache"
mkdir "$own/tmp"; mkfifo "$own/said"
setsid "$1" pull --no-https "$2/$3" "docker://$4" >"$own/said" 2>&1 & child=$!
while read -r line; do
	case $line in *"Creating SIF file"*) date +%s.%N ;; *FATAL*) echo "$line" >&2 ;; esac
done <"$own/said" &
wait $child || :
child=
wait
date +%s.%N
test -s "$2/$3"`

// pipelineScript runs the pipeline and prints the times of its checkpoints.
const pipelineScript = withFolder + `setsid "$1" exec --bind "$own:/out" "$2" python3 /opt/pipeline.py /out & child=$!
wait $child
child=
cat "$own/cp1" "$own/cp2" "$own/cp3"`

// image delivers one image, runs its work, and returns the times.
func (a *apptainer) image(ctx context.Context, d *delivery, name string) (image deliver.Image, err error) {
	image.Name = name
	at := "http://" + d.address
	if err := deliver.Begin(ctx, at, name); err != nil {
		return image, err
	}
	sif := strings.ReplaceAll(name, ":", "-") + ".sif"
	start := time.Now()
	one := d.hosts()[:min(1, len(d.hosts()))]
	made, err := a.place.run(ctx, a.place.measured(one, []string{"sh", "-c", pullScript, "sh", a.program, d.folder, sif, d.address + "/" + name}), "")
	if err != nil {
		return image, err
	}
	times, err := readTimes(made.Stdout)
	if err != nil || len(times) != 2 {
		return image, errors.Join(fmt.Errorf("apptainer did not say when it packs: %s", lastWords(made.Stdout)), err)
	}
	image.CPU = made.Step.CPUSeconds
	image.Sandbox, image.Packing = times[0].Sub(start).Seconds(), times[1].Sub(times[0]).Seconds()
	image.Pull = []float64{times[1].Sub(start).Seconds()}
	if err := deliver.Sent(ctx, at, start, &image); err != nil {
		return image, err
	}
	path := filepath.Join(d.folder, sif)
	if d.images.Work == deliver.Pipeline {
		out, err := a.exec(ctx, d, a.place, path, pipelineScript)
		if err != nil {
			return image, err
		}
		if times, err = readTimes(out.Stdout); err == nil && len(times) != 3 {
			err = fmt.Errorf("there are %d checkpoints", len(times))
		}
		for _, t := range times {
			image.Checkpoints = append(image.Checkpoints, t.Sub(start).Seconds())
		}
		return image, err
	}
	out, err := a.exec(ctx, d, a.place, path, `"$1" exec "$2" first`)
	if err != nil {
		return image, err
	}
	if times, err = readTimes(out.Stdout); err != nil {
		return image, err
	}
	for _, t := range times {
		image.First = append(image.First, t.Sub(start).Seconds())
	}
	if d.images.WorkerMB == 0 {
		return image, nil
	}
	small := a.place
	small.CPUs, small.MemoryMB = 1, d.images.WorkerMB
	out, err = a.exec(ctx, d, small, path, `"$1" exec --bind "$3:/bench" "$2" python3 /opt/worker.py /bench/shards /bench/cache `+strconv.Itoa(d.images.Nodes)+` "${SLURM_PROCID:-0}"`)
	image.Run = out.Ended.Sub(out.Submitted).Seconds()
	return image, err
}

// exec runs a script on all hosts. The script's arguments are Apptainer's program, the SIF
// file and the folder that all hosts see.
func (a *apptainer) exec(ctx context.Context, d *delivery, place Place, sif, script string) (Output, error) {
	return a.place.run(ctx, place.step(d.hosts(), []string{"sh", "-c", script, "sh", a.program, sif, d.folder}), "")
}

// readTimes parses one time on each line, in seconds since 1970.
func readTimes(text string) (times []time.Time, err error) {
	for line := range strings.Lines(text) {
		t, err := deliver.ReadTime(line)
		if err != nil {
			return nil, err
		}
		times = append(times, t)
	}
	return times, nil
}
