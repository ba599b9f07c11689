package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"berth.dev/berth/bench/internal/step"
	"berth.dev/berth/bench/internal/window"
)

// apptainer runs tasks with 'apptainer exec' of a SIF file, without root, as a scientist
// does. It makes this file from the image before the first program runs, and another from
// each delivered image.
type apptainer struct {
	place   Place
	program string
	// unpacks is the reason why programs are not run: each start would unpack the file. It
	// is empty if Apptainer can mount the file.
	unpacks string
	// shared is a folder that all hosts see, with the SIF file of the MPI image. It is
	// empty until share makes the folder.
	shared string
}

// script returns a command that sets Apptainer up and then runs a script with "$@".
// Apptainer keeps its files in the folder instead of the user's home; without a folder,
// in one of the host. The programs beside Apptainer, which it needs, are last on PATH,
// because their newuidmap may lack the set-user-id bit.
func (a *apptainer) script(folder, then string, args ...string) []string {
	return append([]string{"sh", "-c", `set -e; apptainer=$1 home=$2; shift 2
[ -n "$home" ] || home=${TMPDIR:-/tmp}/berth-bench-apptainer-$(id -u)
case $apptainer in */*) PATH=$PATH:${apptainer%/*} ;; esac
export PATH APPTAINER_TMPDIR="$home" APPTAINER_CACHEDIR="$home/cache" APPTAINER_CONFIGDIR="$home/config"
` + then, "sh", a.program, folder}, args...)
}

// Scripts of a host: $home is their folder, and $apptainer the program.
const (
	lookScript = `missing() { echo "$1 is missing: apt-get install $2" >&2; exit 1; }
command -v mksquashfs >/dev/null || missing mksquashfs squashfs-tools
"$apptainer" --version`
	// buildScript makes the file "$2" from the archive "$1". Apptainer cannot read an OCI
	// archive without entries for its folders, so the script unpacks it first.
	buildScript = `mkdir -p -m 0700 "$home"
[ -O "$home" ] || { echo "$home belongs to another user: remove it, or set TMPDIR" >&2; exit 1; }
files=$(tar -tf "$1")
case $files in
*oci-layout*) rm -rf "$home/oci"; mkdir "$home/oci"; tar -C "$home/oci" -xf "$1"; from=oci:$home/oci ;;
*) from=docker-archive:$1 ;;
esac
"$apptainer" --quiet build --force "$home/$2" "$from"
rm -rf "$home/oci" "$home/cache"
`
	// triedScript runs a program in the file. Apptainer's messages show whether it could
	// mount the file.
	triedScript  = `"$apptainer" exec "$home/"` + sif + ` true`
	removeScript = `rm -rf "$home"`
)

// sif is the name of the SIF file in its folder.
const sif = "image.sif"

// unpacking is Apptainer's message when it cannot mount a file.
const unpacking = "Converting SIF file to temporary sandbox"

// execScript returns a script that executes a program in the SIF file.
func execScript(options ...string) string {
	return `exec "$apptainer" --quiet exec ` + words(options) + ` "$home/"` + sif + ` "$@"`
}

func (a *apptainer) Check(ctx context.Context) (map[string]string, error) {
	if _, err := a.place.ask(ctx, "sh", "-c", `command -v "$0"`, a.program); err != nil {
		return nil, fmt.Errorf("%s is missing, and Debian 12 and 13 have no package of it: test/bench/apptainer FOLDER fetches a newer release's package into a folder", a.program)
	}
	version, err := a.place.ask(ctx, a.script("", lookScript)...)
	if err != nil {
		return nil, err
	}
	return map[string]string{"apptainer": strings.TrimPrefix(version, "apptainer version ")}, nil
}

// Prepare makes the SIF file and tries it. If Apptainer cannot mount the file, Run refuses
// programs, but still delivers images.
func (a *apptainer) Prepare(ctx context.Context) error {
	if _, err := a.place.ask(ctx, a.script("", buildScript, a.place.Archive, sif)...); err != nil {
		return err
	}
	said, err := a.place.ask(ctx, a.script("", triedScript)...)
	if strings.Contains(said, unpacking) {
		a.unpacks = "Apptainer cannot mount a SIF file here, and would unpack it for each start: apt-get install squashfuse; /dev/fuse has to be there"
	}
	return err
}

func (a *apptainer) Close(ctx context.Context) error {
	_, err := a.place.ask(ctx, a.script("", removeScript)...)
	if a.shared != "" {
		err = errors.Join(err, os.RemoveAll(a.shared))
		a.shared = ""
	}
	return err
}

func (a *apptainer) Run(ctx context.Context, task Task) (Output, error) {
	if task.Images != nil {
		return a.deliver(ctx, *task.Images)
	}
	if a.unpacks != "" {
		return Output{}, &Unsupported{a.unpacks}
	}
	if task.Sequence != nil {
		return a.sequence(ctx, *task.Sequence)
	}
	if task.Folder == Claim {
		return Output{}, &Unsupported{"Apptainer has no claims"}
	}
	if task.Server != nil && task.Server.At != OnHost {
		return Output{}, &Unsupported{"Apptainer has no pods, and uses the network of the host"}
	}
	return a.place.withServer(ctx, task, func(args []string) (Output, error) {
		return a.place.withFolder(ctx, task.Folder != NoFolder, func(folder string) (Output, error) {
			var options []string
			inside := inContainer
			switch task.Folder {
			case Scratch:
				options = []string{"--bind", folder + ":" + inContainer}
			case EmptyDir:
				// Without --workdir, the scratch folder would be in memory.
				options = []string{"--workdir", folder, "--scratch", inContainer}
			case Root:
				// A SIF file is read-only. /tmp and the home folder are the host's.
				options, inside = []string{"--overlay", folder}, "/."
			}
			args = replace(args, FolderHere, inside)
			if task.Window {
				args = window.Shell(args)
			}
			return noted(a.place.run(ctx, a.place.measured(a.place.host(0), a.script("", execScript(options...), args...)), ""))
		})
	})
}

// sequence runs MPI programs: srun starts the ranks, each in a container on its host, and
// they find each other by Slurm's PMIx.
func (a *apptainer) sequence(ctx context.Context, what Sequence) (Output, error) {
	switch {
	case what.Job == "" || !what.MPI:
		return Output{}, &Unsupported{"Apptainer has no cluster"}
	case what.Parameters["hosts-launcher"] != "srun":
		return Output{}, &Unsupported{"the hosts' mpirun would have to be of the image's version of MPI: hosts-launcher srun"}
	}
	if _, err := os.Stat(a.place.MPIArchive); err != nil {
		return Output{}, noMPIImage(err)
	}
	if err := a.share(ctx); err != nil {
		return Output{}, err
	}
	what.through = a.script(a.shared, execScript())
	text, err := what.spec(what.Job, "", a.place)
	if err != nil {
		return Output{}, err
	}
	return a.place.runSequence(ctx, []string{a.place.Self, step.SequenceArg, text})
}

// share makes the SIF file with MPI in a folder that all hosts see, once.
func (a *apptainer) share(ctx context.Context) error {
	if a.shared != "" {
		return nil
	}
	folder, err := os.MkdirTemp(a.place.Shared, "berth-bench-apptainer-")
	if err != nil {
		return fmt.Errorf("make a folder that all hosts see: %w; --shared names one", err)
	}
	// The file is built on the host's disk, because the folder may be on a network file
	// system.
	if _, err = a.place.ask(ctx, a.script("", buildScript+`mv "$home/$2" "$3/`+sif+`"`, a.place.MPIArchive, "mpi.sif", folder)...); err != nil {
		return errors.Join(err, os.RemoveAll(folder))
	}
	a.shared = folder
	return nil
}
