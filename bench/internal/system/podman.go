package system

import (
	"context"
	"fmt"
	"strings"
)

// podman runs tasks in containers of rootless Podman, which needs no daemon, with
// overlayfs: its other driver copies the whole image for each container. Its
// state is a folder of the host for the time of the run.
type podman struct {
	place   Place
	network string
}

// podmanHome is the folder, in the words of a shell on the host.
const podmanHome = `${TMPDIR:-/tmp}/berth-bench-podman-$(id -u)`

// script is podman as it works in a job: no session of systemd, no cgroup of the
// user's own. What follows are its arguments.
func (d *podman) script(then string) []string {
	return []string{"sh", "-c", `set -e; home=` + podmanHome + `; mkdir -p -m 0700 "$home/run"; export XDG_RUNTIME_DIR="$home/run"
# Its pause process would outlive each command, and the job.
end() { kill "$(cat "$home/run/tmp/pause.pid" 2>/dev/null)" 2>/dev/null || :; }
trap end EXIT
podman() { command podman --storage-driver overlay --root "$home/root" --runroot "$home/run/root" --tmpdir "$home/run/tmp" --cgroup-manager cgroupfs --events-backend none "$@"; }
` + then, "podman"}
}

func (d *podman) Check(ctx context.Context) (map[string]string, error) {
	programs := map[string]string{"podman": "podman", "newuidmap": "uidmap"}
	if d.network == "slirp4netns" {
		programs["slirp4netns"] = "slirp4netns"
	}
	if d.network == "pasta" {
		programs["pasta"] = "passt"
	}
	if err := d.place.found(ctx, programs); err != nil {
		return nil, err
	}
	version, err := d.place.Ask(ctx, d.script(`podman version --format '{{.Version}}' 2>/dev/null || podman --version`)...)
	if err != nil {
		return nil, err
	}
	version = version[strings.LastIndex(version, " ")+1:]
	if d.network == "pasta" && (strings.HasPrefix(version, "3.") || strings.HasPrefix(version, "4.3")) {
		return nil, fmt.Errorf("podman %s does not know pasta: 4.4 or newer is needed", version)
	}
	return map[string]string{"podman": version}, nil
}

func (d *podman) Prepare(ctx context.Context) error {
	_, err := d.place.Ask(ctx, append(d.script(`podman load -q -i "$1" >/dev/null`), d.place.Archive)...)
	return err
}

// Close removes the folder, whose files belong to subordinate users.
func (d *podman) Close(ctx context.Context) error {
	_, err := d.place.Ask(ctx, d.script(`podman unshare rm -rf "$home/root"; end; rm -rf "$home"`)...)
	return err
}

func (d *podman) Run(ctx context.Context, task Task) (Output, error) {
	if task.Folder == Claim {
		return Output{}, &Unsupported{"podman has no claims"}
	}
	if task.Server != nil && task.Server.At != OnHost {
		return Output{}, &Unsupported{"podman has no pods on other nodes"}
	}
	return d.place.withServer(ctx, task, func(args []string) (Output, error) {
		return d.place.withFolder(ctx, task.Folder == Scratch, func(folder string) (Output, error) {
			options := []string{"--rm", "--pull=never", "--cgroups=disabled", "--network=" + d.network}
			inside := inContainer
			switch task.Folder {
			case Scratch:
				options = append(options, "-v", folder+":"+inContainer)
			case EmptyDir:
				options = append(options, "-v", inContainer)
			case Root:
				inside = "/tmp"
			}
			argv := append(d.script(`podman run "$@"`), options...)
			argv = append(append(argv, d.place.Image), replace(args, FolderHere, inside)...)
			return d.place.Run(ctx, d.place.measured(d.place.host(0), "", argv), "")
		})
	})
}
