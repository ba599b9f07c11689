package system

import (
	"context"
	"fmt"
	"strings"

	"berth.dev/berth/bench/internal/window"
)

// podman runs tasks in containers of rootless Podman, which needs no daemon. It uses
// overlayfs, because Podman's other driver copies the whole image for each container. Its
// state is in a folder of the host during the run.
type podman struct {
	place   Place
	network string
}

// podmanHome is the folder of Podman's state, for a shell on the host to expand.
const podmanHome = `${TMPDIR:-/tmp}/berth-bench-podman-$(id -u)`

// script returns a command that sets Podman up and then runs a script. A job has no systemd
// session and no delegated cgroup, so it sets XDG_RUNTIME_DIR and uses no systemd.
func (d *podman) script(then string) []string {
	return []string{"sh", "-c", `set -e; home=` + podmanHome + `; mkdir -p -m 0700 "$home/run"; export XDG_RUNTIME_DIR="$home/run"
# By default all of the user's containers share one file of locks.
export CONTAINERS_CONF="$home/containers.conf"; printf '[engine]\nlock_type = "file"\n' >"$CONTAINERS_CONF"
podman() { ${exec:-command} podman --storage-driver overlay --root "$home/root" --runroot "$home/run/root" --tmpdir "$home/run/tmp" --cgroup-manager cgroupfs --events-backend none "$@"; }
container= bypass=
end() {
	if [ -n "$container" ]; then
		# The first process of a container ignores the SIGTERM that podman forwards.
		kill $container 2>/dev/null; podman rm --all --force --time 0 >/dev/null 2>&1; wait $container
	fi
	[ -z "$bypass" ] || { kill $bypass 2>/dev/null; wait $bypass; }
	# Podman's pause process would outlive each command, and the job.
	kill "$(cat "$home/run/tmp/pause.pid" 2>/dev/null)" 2>/dev/null
}
# A shell runs no EXIT trap if a signal kills it, and no trap of a signal until its foreground program ends.
trap 'code=$?; set +e; end; exit $code' EXIT
trap 'exit 143' TERM INT HUP
run() {
	(exec=exec; podman "$@") & container=$!
	code=0; wait $container || code=$?
	container=
}
` + then, "podman"}
}

// bypass runs a container whose sockets are subject to bypass4netns: crun hands
// it the filter of the container's profile. bypass4netns ignores connections to
// the loopback and into slirp4netns' own network, and makes all others on the
// host. The profile comes from bypass4netns' test/seccomp.json.sh.
const bypass = `socket="$home/run/bypass4netns.sock"
cat >"$home/seccomp.json" <<END
{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "$socket", "syscalls": [{"action": "SCMP_ACT_NOTIFY", "names":
  ["bind", "close", "connect", "setsockopt", "fcntl", "_exit", "exit_group", "getpeername"]}]}
END
rm -f "$socket" # of a container before
bypass4netns --socket "$socket" --ignore 127.0.0.0/8,10.0.2.0/24 >"$home/bypass4netns.log" 2>&1 & bypass=$!
until [ -S "$socket" ]; do
	kill -0 $bypass || { cat "$home/bypass4netns.log" >&2; exit 1; }
	sleep 0.01
done
run --runtime crun run --security-opt seccomp="$home/seccomp.json" "$@"
`

// bypassed fails the script if none of the container's connections were made on the host,
// because its figures would describe slirp4netns.
const bypassed = `[ $code != 0 ] || grep -q 'bypassed connect socket' "$home/bypass4netns.log" || {
	tail -n 3 "$home/bypass4netns.log" >&2
	echo "bypass4netns has made no connection on the host" >&2
	exit 1
}
`

// run returns the part of a script that runs a container. connects reports whether the
// container makes connections, which bypass4netns must then bypass.
func (d *podman) run(connects bool) string {
	const exit = "exit $code"
	switch {
	case d.network != "bypass4netns":
		return "run run \"$@\"\n" + exit
	case connects:
		return bypass + bypassed + exit
	}
	return bypass + exit
}

// networkOption returns the value of Podman's option --network. bypass4netns works on top of
// slirp4netns.
func (d *podman) networkOption() string {
	if d.network == "bypass4netns" {
		return "slirp4netns"
	}
	return d.network
}

func (d *podman) Check(ctx context.Context) (map[string]string, error) {
	programs := map[string]string{"podman": "podman", "newuidmap": "uidmap"}
	if d.networkOption() == "slirp4netns" {
		programs["slirp4netns"] = "slirp4netns"
	}
	if d.network == "bypass4netns" {
		programs["crun"] = "crun"
	}
	if d.network == "pasta" {
		programs["pasta"] = "passt"
	}
	if err := d.place.found(ctx, programs); err != nil {
		return nil, err
	}
	if d.network == "bypass4netns" {
		// No distribution has a package of bypass4netns.
		if _, err := d.place.ask(ctx, "sh", "-c", "command -v bypass4netns"); err != nil {
			return nil, fmt.Errorf("bypass4netns is missing: run make -C test/bench and put test/bench/out/bypass4netns on PATH")
		}
	}
	version, err := d.place.ask(ctx, d.script(`podman version --format '{{.Version}}' 2>/dev/null || podman --version`)...)
	if err != nil {
		return nil, err
	}
	version = version[strings.LastIndex(version, " ")+1:]
	if d.network == "pasta" && (strings.HasPrefix(version, "3.") || strings.HasPrefix(version, "4.3")) {
		return nil, fmt.Errorf("podman %s does not know pasta: 4.4 or newer is needed", version)
	}
	versions := map[string]string{"podman": version}
	if d.network == "bypass4netns" {
		said, err := d.place.ask(ctx, d.script("bypass4netns --version")...)
		if err != nil {
			return nil, err
		}
		line, _, _ := strings.Cut(said, "\n")
		versions["bypass4netns"] = strings.TrimPrefix(line, "bypass4netns version ")
	}
	return versions, nil
}

func (d *podman) Prepare(ctx context.Context) error {
	_, err := d.place.ask(ctx, append(d.script(`podman load -q -i "$1" >/dev/null`), d.place.Archive)...)
	return err
}

// Close removes the folder of Podman's state. Its files belong to subordinate IDs, and
// Podman has a mount in it.
func (d *podman) Close(ctx context.Context) error {
	_, err := d.place.ask(ctx, d.script(`podman unshare sh -c 'umount -l "$1/overlay" 2>/dev/null || :; rm -rf "$1"' sh "$home/root"; end; rm -rf "$home"`)...)
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
			options := []string{"--rm", "--pull=never", "--cgroups=disabled", "--network=" + d.networkOption()}
			inside := inContainer
			switch task.Folder {
			case Scratch:
				options = append(options, "-v", folder+":"+inContainer)
			case EmptyDir:
				options = append(options, "-v", inContainer)
			case Root:
				inside = "/tmp"
			}
			args = replace(args, FolderHere, inside)
			if task.Window {
				args = window.Shell(args)
			}
			argv := append(d.script(d.run(task.Connects)), options...)
			argv = append(append(argv, d.place.Image), args...)
			return noted(d.place.run(ctx, d.place.measured(d.place.host(0), argv), ""))
		})
	})
}
