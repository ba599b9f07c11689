package system

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/plan"
)

// TestCommands lists how each system starts a program, argument by argument.
// SCRIPT replaces scripts of several lines, which other tests cover. Other tests
// also cover flannel and job, which run no such program.
func TestCommands(t *testing.T) {
	const calls = `{
for word; do
	case $word in
	*"
"*) word=SCRIPT ;;
	'') word="''" ;;
	esac
	printf ' %s' "$word"
done
echo
} >>"$DIR/calls"
`
	dir, env := programs(t, map[string]string{
		"srun":    calls + `case "$*" in *" mktemp "*) echo /the/folder ;; esac`,
		"kubectl": calls, "date": "", "self": "", "berth": "",
	})
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	place := Place{
		Self: "SELF", Berth: "BERTH", Kubectl: dir + "/bin/kubectl", Archive: "ARCHIVE", Image: "IMAGE", Hosts: []string{"n1", "n2"},
		CPUs: 8, MemoryMB: 4096, Timeout: time.Minute,
	}
	const srun = " --quiet --overlap --unbuffered -N1 -n1 -w n1 -c8 --mem=4096 "
	for _, c := range []struct {
		driver  string
		options map[string]string
		// program and storage list the calls of srun or kubectl for sysbench, and for fio
		// on scratch.
		program, storage string
	}{
		{
			driver:  "bare",
			program: "SELF step --window --image ARCHIVE -- sysbench cpu",
			storage: "SELF step --window --image ARCHIVE -- fio --filename=/the/folder/fio",
		},
		{
			driver: "berth", options: map[string]string{"network": "overlay"},
			program: "SELF step -- BERTH run --quiet --image ARCHIVE -f - --fast-path off",
			storage: "SELF step -- BERTH run --quiet --image ARCHIVE -f - --fast-path off --mount /the/folder:/data",
		},
		{
			driver: "berth", options: map[string]string{"network": "auto", "options": "--a b", "program": "berth-other"},
			program: "SELF step -- berth-other run --quiet --image ARCHIVE -f - --a b --fast-path auto",
			storage: "SELF step -- berth-other run --quiet --image ARCHIVE -f - --a b --fast-path auto --mount /the/folder:/data",
		},
		{
			driver: "podman", options: map[string]string{"network": "slirp4netns"},
			program: "SELF step -- sh -c SCRIPT podman --rm --pull=never --cgroups=disabled --network=slirp4netns IMAGE sh -c SCRIPT sh sysbench cpu",
			storage: "SELF step -- sh -c SCRIPT podman --rm --pull=never --cgroups=disabled --network=slirp4netns -v /the/folder:/data IMAGE sh -c SCRIPT sh fio --filename=/data/fio",
		},
		{
			driver: "podman", options: map[string]string{"network": "pasta"},
			program: "SELF step -- sh -c SCRIPT podman --rm --pull=never --cgroups=disabled --network=pasta IMAGE sh -c SCRIPT sh sysbench cpu",
			storage: "SELF step -- sh -c SCRIPT podman --rm --pull=never --cgroups=disabled --network=pasta -v /the/folder:/data IMAGE sh -c SCRIPT sh fio --filename=/data/fio",
		},
		{
			driver: "podman", options: map[string]string{"network": "bypass4netns"},
			program: "SELF step -- sh -c SCRIPT podman --rm --pull=never --cgroups=disabled --network=slirp4netns IMAGE sh -c SCRIPT sh sysbench cpu",
			storage: "SELF step -- sh -c SCRIPT podman --rm --pull=never --cgroups=disabled --network=slirp4netns -v /the/folder:/data IMAGE sh -c SCRIPT sh fio --filename=/data/fio",
		},
		{
			driver: "rootlesskit", options: map[string]string{"network": "slirp4netns"},
			program: "SELF step --window --image ARCHIVE --through 7 -- rootlesskit --net=slirp4netns --mtu=65520 --disable-host-loopback --copy-up=/etc " +
				"--slirp4netns-sandbox=false --slirp4netns-seccomp=false sysbench cpu",
			storage: "SELF step --window --image ARCHIVE --through 7 -- rootlesskit --net=slirp4netns --mtu=65520 --disable-host-loopback --copy-up=/etc " +
				"--slirp4netns-sandbox=false --slirp4netns-seccomp=false fio --filename=/the/folder/fio",
		},
		{
			driver: "rootlesskit", options: map[string]string{"network": "pasta"},
			program: "SELF step --window --image ARCHIVE --through 5 -- rootlesskit --net=pasta --mtu=65520 --disable-host-loopback --copy-up=/etc sysbench cpu",
			storage: "SELF step --window --image ARCHIVE --through 5 -- rootlesskit --net=pasta --mtu=65520 --disable-host-loopback --copy-up=/etc fio --filename=/the/folder/fio",
		},
		{
			driver: "rootlesskit", options: map[string]string{"network": "host"},
			program: "SELF step --window --image ARCHIVE --through 4 -- rootlesskit --net=host --mtu=65520 --disable-host-loopback sysbench cpu",
			storage: "SELF step --window --image ARCHIVE --through 4 -- rootlesskit --net=host --mtu=65520 --disable-host-loopback fio --filename=/the/folder/fio",
		},
		{
			driver:  "pasta",
			program: "SELF step --window --image ARCHIVE --through 12 -- pasta --config-net --quiet -t none -u none -T none -U none -- sysbench cpu",
			storage: "SELF step --window --image ARCHIVE --through 12 -- pasta --config-net --quiet -t none -u none -T none -U none -- fio --filename=/the/folder/fio",
		},
		{
			driver: "apptainer", options: map[string]string{"program": "apptainer"},
			program: "SELF step -- sh -c SCRIPT sh apptainer '' sh -c SCRIPT sh sysbench cpu",
			storage: "SELF step -- sh -c SCRIPT sh apptainer '' sh -c SCRIPT sh fio --filename=/data/fio",
		},
		{
			driver: "kubeconfig", options: map[string]string{"file": "/the/file", "namespace": "mine"},
			program: " --namespace mine --kubeconfig /the/file create -f -",
		},
	} {
		for _, of := range []struct {
			task Task
			want string
		}{
			{Task{Args: []string{"sysbench", "cpu"}, Window: true}, c.program},
			{Task{Args: []string{"fio", "--filename=" + FolderHere + "/fio"}, Window: true, Folder: Scratch}, c.storage},
		} {
			driver, err := New(plan.System{Name: c.driver, Driver: c.driver, Options: c.options}, place)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir+"/calls", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			_, _ = driver.Run(t.Context(), of.task) // programs that only print their arguments give no figures
			want := of.want
			if want != "" && !strings.HasPrefix(want, " ") {
				want = srun + want
			}
			var got []string
			for line := range strings.Lines(readFile(t, dir+"/calls")) {
				// Omit the commands that make and remove the folder.
				if line = strings.TrimSuffix(line, "\n"); !regexp.MustCompile(` (mktemp|rm) `).MatchString(line) {
					got = append(got, line)
				}
			}
			if want == "" && len(got) == 0 {
				continue // the driver does not support it
			}
			if len(got) == 0 || got[0] != want {
				t.Errorf("%s %v: %s:\ngot  %q\nwant %q", c.driver, c.options, of.task.Args[0], got, want)
			}
		}
	}
}
