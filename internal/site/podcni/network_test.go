package podcni

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fake is a plugin that records its calls, and behaves as the files beside it say:
// with FAIL-COMMAND-POD it fails with that file's message (and the code in CODE,
// default 100), with DIE-COMMAND it fails without a CNI error, with HANG-COMMAND it
// does not end.
const fake = `#!/bin/sh
dir=${0%/*}
input=$(cat)
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.1.0","0.3.1","0.4.0","1.0.0"]}'; exit ;;
esac
echo "$CNI_COMMAND $CNI_CONTAINERID $(echo "$input" | grep -o '"generation":[0-9]*') $(echo "$input" | grep -o '"user":"[a-z]*"')" >>"$dir/asked"
echo "$CNI_NETNS" >"$dir/namespace"
if [ -e "$dir/HANG-$CNI_COMMAND" ] || [ -e "$dir/HANG-$CNI_COMMAND-$CNI_CONTAINERID" ]; then sleep 1000; fi
if [ -e "$dir/FAIL-$CNI_COMMAND-$CNI_CONTAINERID" ]; then
	printf '{"cniVersion":"1.0.0","code":%s,"msg":"%s"}' "$(cat "$dir/CODE" 2>/dev/null || echo 100)" "$(cat "$dir/FAIL-$CNI_COMMAND-$CNI_CONTAINERID")"
	exit 1
fi
if [ -e "$dir/DIE-$CNI_COMMAND" ]; then echo "no iptables here" >&2; exit 3; fi
if [ -e "$dir/KILL-$CNI_COMMAND" ]; then kill -9 $$; fi
[ "$CNI_COMMAND" != ADD ] || cat "$dir/result"
`

const result = `{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/ns"}],
"ips":[{"address":"fd00::2/64","interface":1},{"address":"10.0.0.1/24","interface":0},{"address":"10.0.0.2/24","interface":1}]}`

type bench struct {
	t    *testing.T
	dir  string
	list string
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, dir: t.TempDir()}
	// Do not depend on the umask of the caller.
	if err := os.Chmod(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b.list = filepath.Join(b.dir, "site.conflist")
	b.write("fake", fake, 0o755)
	b.write("result", result, 0o644)
	b.generation(1)
	return b
}

func (b *bench) write(name, text string, mode os.FileMode) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), mode); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) remove(name string) {
	b.t.Helper()
	if err := os.Remove(filepath.Join(b.dir, name)); err != nil {
		b.t.Fatal(err)
	}
}

// generation writes the list with another generation, as an administrator's change.
func (b *bench) generation(n int) {
	b.write("site.conflist", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"site","plugins":[{"type":"fake","generation":%d,"capabilities":{"berth":true}}]}`, n), 0o644)
}

func (b *bench) open() *Network {
	b.t.Helper()
	n, err := Open(b.t.Context(), b.list, []string{b.dir}, filepath.Join(b.dir, "state"), func() {})
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// asked returns the calls of plugins since the last time.
func (b *bench) asked() string {
	path := filepath.Join(b.dir, "asked")
	text, _ := os.ReadFile(path)
	os.Remove(path)
	var all []string
	for line := range strings.Lines(string(text)) {
		all = append(all, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(all, "; ")
}

func (b *bench) want(asked string) {
	b.t.Helper()
	if got := b.asked(); got != asked {
		b.t.Errorf("plugins were asked %q, want %q", got, asked)
	}
}

func pods(ids ...string) []Pod {
	var all []Pod
	for _, id := range ids {
		all = append(all, Pod{ID: id, Namespace: "/ns/" + id, Owner: Owner{User: "alice", UID: 1001, Network: 4096}, Again: true})
	}
	return all
}

func (b *bench) apply(n *Network, check bool, pods []Pod) map[string]Outcome {
	b.t.Helper()
	outcomes, err := b.settle(n, check, pods)
	if err != nil {
		b.t.Fatal(err)
	}
	return outcomes
}

// settle applies, and waits until all plugins have finished.
func (b *bench) settle(n *Network, check bool, pods []Pod) (map[string]Outcome, error) {
	b.t.Helper()
	outcomes, err := n.Apply(b.t.Context(), pods, check)
	n.mu.Lock()
	all := maps.Clone(n.attempts)
	n.mu.Unlock()
	for id, a := range all {
		<-a.done
		if outcomes[id].Pending {
			outcomes[id] = n.outcome(b.t.Context(), Pod{ID: id}, false)
		}
	}
	return outcomes, err
}

func TestPodsAreConnectedOnce(t *testing.T) {
	b := newBench(t)
	n := b.open()
	got := b.apply(n, false, pods("job-1"))["job-1"]
	if got.Err != nil || got.Address.String() != "10.0.0.2" || !got.Changed {
		t.Errorf("connected: %+v", got)
	}
	b.want(`ADD job-1 "generation":1 "user":"alice"`)
	for range 2 {
		if got := b.apply(n, false, pods("job-1"))["job-1"]; got.Err != nil || got.Address.String() != "10.0.0.2" || got.Changed {
			t.Errorf("again: %+v", got)
		}
	}
	b.want("")
	// The list and the daemon have changed: an existing pod still uses the list that
	// connected it.
	b.generation(2)
	n = b.open()
	b.apply(n, true, pods("job-1"))
	b.want(`CHECK job-1 "generation":1 "user":"alice"`)
	b.apply(n, false, nil)
	b.want(`DEL job-1 "generation":1 "user":"alice"`)
	b.apply(n, false, nil)
	b.want("")
	left, err := filepath.Glob(filepath.Join(b.dir, "state", "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestBrokenFileIsRecreated(t *testing.T) {
	b := newBench(t)
	n := b.open()
	b.apply(n, false, pods("job-1"))
	b.asked()
	b.write("FAIL-CHECK-job-1", "eth0 is gone", 0o644)
	if got := b.apply(n, true, pods("job-1"))["job-1"]; got.Err != nil || !got.Changed {
		t.Errorf("after CHECK has failed: %+v", got)
	}
	if asked := b.asked(); !strings.HasPrefix(asked, "CHECK job-1") || !strings.Contains(asked, "; DEL job-1") || !strings.Contains(asked, "; ADD job-1") {
		t.Errorf("plugins were asked %q", asked)
	}
	b.remove("FAIL-CHECK-job-1")
	b.reads(b.apply(n, true, pods("job-1"))["job-1"])
	b.asked()
	// A missing plugin says nothing about the network that it created.
	b.remove("fake")
	if got := b.apply(n, true, pods("job-1"))["job-1"]; got.Err == nil || got.Gone {
		t.Errorf("without the plugin: %+v", got)
	}
	b.want("")
}

// reads checks that the pod is connected, and was connected before.
func (b *bench) reads(got Outcome) {
	b.t.Helper()
	if got.Err != nil || got.Changed || got.Address.String() != "10.0.0.2" {
		b.t.Errorf("a pod that is connected: %+v", got)
	}
}

// A job keeps its network when its plugin is killed, crashes, hangs, or is too busy
// to answer.
func TestPluginWithoutVersionIsHarmless(t *testing.T) {
	b := newBench(t)
	n := b.open()
	b.apply(n, false, pods("job-1"))
	b.asked()
	check := func(what string) {
		t.Helper()
		outcomes, err := b.settle(n, true, pods("job-1"))
		if got := outcomes["job-1"]; err != nil || got.Err == nil || got.Gone || got.Changed {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
		b.want(`CHECK job-1 "generation":1 "user":"alice"`)
	}
	for _, how := range []string{"DIE-CHECK", "KILL-CHECK"} {
		b.write(how, "", 0o644)
		check(how)
		b.remove(how)
	}
	b.write("FAIL-CHECK-job-1", "not now", 0o644)
	for _, code := range []string{"11", "50", "51"} {
		b.write("CODE", code, 0o644)
		check("code " + code)
	}
	b.remove("FAIL-CHECK-job-1")
	b.write("HANG-CHECK", "", 0o644)
	n.limit = 300 * time.Millisecond
	check("HANG-CHECK")
	n.limit = limit
	b.remove("HANG-CHECK")
	b.reads(b.apply(n, true, pods("job-1"))["job-1"])
}

// Jobs start while plugins fail to disconnect other pods.
func TestHangingPodDelaysNoOther(t *testing.T) {
	b := newBench(t)
	n := b.open()
	b.apply(n, false, pods("job-1"))
	b.write("HANG-DEL", "", 0o644)
	outcomes, err := b.settle(n, false, pods("job-2"))
	if err == nil || !strings.Contains(err.Error(), "disconnect job-1 by CNI: the plugins have not ended yet") || outcomes["job-2"].Err != nil {
		t.Errorf("beside a pod that does not go: %v, %+v", err, outcomes)
	}
	if got := b.apply(n, false, pods("job-2", "job-3"))["job-3"]; got.Err != nil || !n.removals["job-1"].running() {
		t.Errorf("a pod that comes then: %+v", got)
	}
	b.remove("HANG-DEL")
	for range 2 {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
	b.asked()
	b.apply(b.open(), false, pods("job-2", "job-3"))
	b.want(`DEL job-1 "generation":1 "user":"alice"`)
}

// Pods whose plugins hang while connecting or checking hold up no other pod. They are
// removed when nobody wants them any more.
func TestHangingPluginAffectsOnlyItsPod(t *testing.T) {
	for _, command := range []string{"ADD", "CHECK"} {
		b := newBench(t)
		n := b.open()
		ended := make(chan struct{}, 8)
		n.ended = func() { ended <- struct{}{} }
		if command == "CHECK" {
			b.apply(n, false, pods("job-1"))
			<-ended
		}
		b.write("HANG-"+command+"-job-1", "", 0o644)
		check := command == "CHECK"
		outcomes, err := n.Apply(t.Context(), pods("job-1", "job-2"), check)
		if err != nil || !outcomes["job-1"].Pending || !outcomes["job-2"].Pending {
			t.Fatalf("%s: %+v, %v", command, outcomes, err)
		}
		// The pod whose plugin does not hang.
		<-ended
		outcomes, err = n.Apply(t.Context(), pods("job-1", "job-2", "job-3"), check)
		if err != nil || !outcomes["job-1"].Pending || outcomes["job-2"].Err != nil || !outcomes["job-2"].Address.IsValid() {
			t.Errorf("%s beside a pod that hangs: %+v, %v", command, outcomes, err)
		}
		<-ended
		b.remove("HANG-" + command + "-job-1")
		b.asked()
		if outcomes := b.apply(n, false, pods("job-2", "job-3")); outcomes["job-3"].Err != nil {
			t.Errorf("%s: the third: %+v", command, outcomes)
		}
		b.want(`DEL job-1 "generation":1 "user":"alice"`)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A plugin is blocked on a hanging mount, where no signal reaches it, and its pod is
// removed. Other pods do not wait, and its work is undone once it has ended.
func TestUnkillablePluginAffectsOnlyItsPod(t *testing.T) {
	b := newBench(t)
	n := b.open()
	b.apply(n, false, pods("job-1"))
	b.asked()
	stuck := &attempt{cancel: func() {}, done: make(chan struct{})}
	n.attempts["job-1"] = stuck
	outcomes, err := b.settle(n, false, pods("job-2"))
	if err == nil || !strings.Contains(err.Error(), "disconnect job-1 by CNI: the plugins have not ended yet") || outcomes["job-2"].Err != nil {
		t.Errorf("beside a plugin that nothing ends: %v, %+v", err, outcomes)
	}
	b.want(`ADD job-2 "generation":1 "user":"alice"`)
	if got, err := n.Apply(t.Context(), pods("job-1", "job-2"), false); err != nil || !got["job-1"].Pending {
		t.Errorf("its pod is wanted again: %+v, %v", got, err)
	}
	close(stuck.done)
	b.apply(n, false, pods("job-2"))
	b.want(`DEL job-1 "generation":1 "user":"alice"`)
	// The same holds for a plugin that removes a pod.
	b.apply(n, false, pods("job-1", "job-2"))
	b.asked()
	n.removals["job-0"] = &removal{cancel: func() {}, done: make(chan struct{}), namespace: "/ns/job-3"}
	for range 2 {
		if got := b.apply(n, false, pods("job-1", "job-2", "job-3"))["job-3"]; got.Err != nil {
			t.Errorf("a pod that comes where another does not go: %v", got.Err)
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// If plugins fail for two pods, the end of one attempt does not start the next
// attempt of the other.
func TestRetriesAreBounded(t *testing.T) {
	b := newBench(t)
	n := b.open()
	b.write("DIE-ADD", "", 0o644)
	both := pods("job-1", "job-2")
	first := b.apply(n, false, both)
	b.asked()
	both[0].Again, both[1].Again = false, false
	for range 3 {
		if again := b.apply(n, false, both); again["job-1"] != first["job-1"] {
			t.Errorf("nothing was asked, and now it is %+v", again)
		}
	}
	b.want("")
	b.remove("DIE-ADD")
	if got := b.apply(n, true, both)["job-1"]; got.Err != nil {
		t.Errorf("with the next look at all: %v", got.Err)
	}
}

// A job that returns uses the same path for its namespace. Apply ends the removal of
// the former pod, and the next removal does not receive that path.
func TestReturningPodKeepsItsInterface(t *testing.T) {
	b := newBench(t)
	n := b.open()
	b.apply(n, false, pods("job-1"))
	b.write("HANG-DEL", "", 0o644)
	again := pods("job-2")
	again[0].Namespace = "/ns/job-1"
	if outcomes, err := b.settle(n, false, again); err == nil || outcomes["job-2"].Err != nil || n.removals["job-1"].running() {
		t.Errorf("a job that comes again: %v, %+v", err, outcomes)
	}
	b.remove("HANG-DEL")
	b.asked()
	b.apply(n, false, again)
	b.want(`DEL job-1 "generation":1 "user":"alice"`)
	if text, err := os.ReadFile(filepath.Join(b.dir, "namespace")); err != nil || len(strings.TrimSpace(string(text))) > 0 {
		t.Errorf("DEL was told of namespace %s, %v", text, err)
	}
}

// The disk was full, or the node lost power while a file was written.
func TestUnwrittenRecordIsIgnored(t *testing.T) {
	b := newBench(t)
	n := b.open()
	b.apply(n, false, nil)
	if err := os.Symlink("/dev/full", n.file(unfinished+"job-1")); err != nil {
		t.Fatal(err)
	}
	if err := n.begin(pods("job-1")[0]); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	left := func() []string {
		t.Helper()
		entries, err := os.ReadDir(n.file(""))
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, entry := range entries {
			all = append(all, entry.Name())
		}
		return all
	}
	if got := left(); len(got) > 0 {
		t.Errorf("on a full disk it leaves %v", got)
	}
	for _, name := range []string{"job-1", "job-2", unfinished + "job-3"} {
		if err := os.WriteFile(n.file(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.apply(n, false, pods("job-2"))["job-2"]; got.Err != nil || !got.Changed {
		t.Errorf("a pod whose file is empty: %+v", got)
	}
	b.want(`DEL job-1 "generation":1 "user":""; DEL job-2 "generation":1 "user":"alice"; ADD job-2 "generation":1 "user":"alice"`)
	if got := left(); !slices.Equal(got, []string{"job-2"}) {
		t.Errorf("left: %v", got)
	}
	// libcni's own file for a pod is not written atomically either.
	results, err := filepath.Glob(filepath.Join(b.dir, "state", "results", "*"))
	if err != nil || len(results) != 1 {
		t.Fatalf("results: %v, %v", results, err)
	}
	if err := os.Truncate(results[0], 0); err != nil {
		t.Fatal(err)
	}
	if got := b.apply(n, false, pods("job-2"))["job-2"]; got.Err != nil || !got.Changed {
		t.Errorf("a pod whose result is empty: %+v", got)
	}
}

// Plugins run as root.
func TestOnlyRootOwnsPlugins(t *testing.T) {
	for name, mode := range map[string]os.FileMode{"site.conflist": 0o664, "fake": 0o757, ".": 0o775} {
		b := newBench(t)
		path := filepath.Join(b.dir, name)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), b.list, []string{b.dir, "/nowhere"}, b.dir, func() {}); err == nil || !strings.Contains(err.Error(), "chmod go-w "+path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	b := newBench(t)
	if err := os.Chown(filepath.Join(b.dir, "fake"), 1001, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), b.list, []string{b.dir}, b.dir, func() {}); err == nil || !strings.Contains(err.Error(), "chown root") {
		t.Errorf("a plugin of somebody else: %v", err)
	}
}

func TestPluginsDoNotInheritDaemonsEnvironment(t *testing.T) {
	if got := theirs([]string{"PATH=/bin", "SECRET=1", "CNI_COMMAND=ADD", "PATHS=1"}); !slices.Equal(got, []string{"PATH=/bin", "CNI_COMMAND=ADD"}) {
		t.Errorf("got %v", got)
	}
}

// The daemon or the node stopped while plugins ran.
func TestStartedStepsAreUndone(t *testing.T) {
	b := newBench(t)
	n := b.open()
	if _, err := b.settle(n, false, nil); err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods("job-1", "job-2") {
		if err := n.begin(pod); err != nil {
			t.Fatal(err)
		}
	}
	b.apply(b.open(), false, pods("job-2"))
	if asked := b.asked(); asked != `DEL job-1 "generation":1 "user":"alice"; DEL job-2 "generation":1 "user":"alice"; ADD job-2 "generation":1 "user":"alice"` {
		t.Errorf("plugins were asked %q", asked)
	}
}

func TestFailingPodAffectsNoOther(t *testing.T) {
	b := newBench(t)
	n := b.open()
	b.write("FAIL-ADD-job-1", "no addresses are left", 0o644)
	outcomes := b.apply(n, false, pods("job-1", "job-2"))
	if got := outcomes["job-2"]; got.Err != nil {
		t.Errorf("the other one: %v", got.Err)
	}
	if got := outcomes["job-1"]; got.Err == nil || !got.Gone || !strings.Contains(got.Err.Error(), `connect job-1 by CNI (list site): plugin type="fake"`) || !strings.Contains(got.Err.Error(), "no addresses are left") {
		t.Errorf("it: %+v", got)
	}
	b.asked()
	b.remove("FAIL-ADD-job-1")
	b.write("DIE-ADD", "", 0o644)
	if got := b.apply(n, false, pods("job-1", "job-2"))["job-1"]; got.Err == nil || !strings.Contains(got.Err.Error(), "exit status 3: no iptables here") {
		t.Errorf("a plugin that dies: %v", got.Err)
	}
	b.remove("DIE-ADD")
	if got := b.apply(n, false, pods("job-1", "job-2"))["job-1"]; got.Err != nil {
		t.Errorf("again: %v", got.Err)
	}
	b.write("FAIL-DEL-job-1", "busy", 0o644)
	outcomes, err := b.settle(n, false, pods("job-2", "job-3"))
	if err == nil || !strings.Contains(err.Error(), "disconnect job-1 by CNI") || outcomes["job-3"].Err != nil {
		t.Errorf("a pod that does not go: %v, %v", err, outcomes)
	}
	b.remove("FAIL-DEL-job-1")
	b.asked()
	b.apply(n, false, pods("job-2", "job-3"))
	b.want(`DEL job-1 "generation":1 "user":"alice"`)
}

// A child of the plugin keeps its output open.
func TestHangingPluginIsKilled(t *testing.T) {
	b := newBench(t)
	n := b.open()
	b.write("HANG-ADD", "", 0o644)
	n.limit = 300 * time.Millisecond
	outcomes, err := b.settle(n, false, pods("job-1"))
	n.limit = limit
	if got := outcomes["job-1"]; err != nil || got.Err == nil || !strings.Contains(got.Err.Error(), "have not ended in time") {
		t.Errorf("a plugin that hangs: %+v, %v", got, err)
	}
	b.remove("HANG-ADD")
	if got := b.apply(n, false, pods("job-1"))["job-1"]; got.Err != nil {
		t.Errorf("again: %v", got.Err)
	}
}

func TestListMistakesAreReported(t *testing.T) {
	for text, reason := range map[string]string{
		`{`: "site.conflist",
		`{"cniVersion":"1.0.0","name":"site","plugins":[]}`:                  "plugins",
		`{"cniVersion":"1.0.0","name":"site","plugins":[{"type":"other"}]}`:  "install them in a directory of 'cni.plugins'",
		`{"cniVersion":"0.3.1","name":"site","plugins":[{"type":"fake"}]}`:   "0.4.0 or newer",
		`{"name":"site","plugins":[{"type":"fake"}]}`:                        "0.4.0 or newer",
		`{"cniVersion":"1.0.0","name":"si te","plugins":[{"type":"fake"}]}`:  "si te",
		`{"cniVersion":"99.0.0","name":"site","plugins":[{"type":"fake"}]}`:  "99.0.0",
		`{"cniVersion":"1.0.0","plugins":[{"type":"fake"}]}`:                 "name",
		`{"cniVersion":"1.0.0","name":"site","type":"fake","generation": 1}`: "plugins",
	} {
		b := newBench(t)
		b.write("site.conflist", text, 0o644)
		if _, err := Open(t.Context(), b.list, []string{b.dir}, b.dir, func() {}); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, want %s", text, err, reason)
		}
	}
	b := newBench(t)
	b.remove("site.conflist")
	if _, err := Open(t.Context(), b.list, []string{b.dir}, b.dir, func() {}); err == nil || !strings.Contains(err.Error(), "correct 'cni.list'") {
		t.Errorf("no list: %v", err)
	}
	b.generation(1)
	b.write("result", `{"cniVersion":"1.0.0","ips":[{"address":"fd00::2/64"}]}`, 0o644)
	if got := b.apply(b.open(), false, pods("job-1"))["job-1"]; got.Err == nil || !strings.Contains(got.Err.Error(), "no IPv4 address") {
		t.Errorf("no address: %v", got.Err)
	}
}
