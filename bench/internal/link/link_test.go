package link

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
)

// TestMain also serves as the guard, and as the process that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == GuardArg {
		if err := Guard(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv("LINK_TEST_HOLD"); dir != "" {
		hold(dir)
	}
	os.Exit(m.Run())
}

// hold changes two files and waits until it is killed.
func hold(dir string) {
	g, err := newGuard(os.Args[0])
	for _, name := range []string{"a", "b"} {
		s := file(filepath.Join(dir, name), "2")
		err = errors.Join(err, s.make(context.Background(), Host{}, g.record))
	}
	fmt.Println("held", err)
	select {}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func is(path, want string) bool {
	text, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(string(text)) == want
}

// TestTakenBackWhenKilled: changes are undone even if the process that made them is
// killed.
func TestTakenBackWhenKilled(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "1\n")
	write(t, filepath.Join(dir, "b"), "one two\n")
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), "LINK_TEST_HOLD="+dir)
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "held <nil>\n" || !is(filepath.Join(dir, "a"), "2") || !is(filepath.Join(dir, "b"), "2") {
		t.Fatalf("it did not change them: %q, %v", line, err)
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait() // it was killed
	for deadline := time.Now().Add(time.Minute); !is(filepath.Join(dir, "a"), "1") || !is(filepath.Join(dir, "b"), "one two"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the files are not as they were")
		}
	}
}

// TestFor: the command sees the link, its exit code is returned, and all settings are
// restored. A setting that cannot be made is reported.
func TestFor(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "one")
	write(t, path, "never [always] madvise\n")
	var warnings []string
	warn := func(what string) { warnings = append(warnings, what) }
	g, err := newGuard(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	// A file in brackets has the kernel's format; here it then has what was
	// written.
	if err := file(path, "never").make(t.Context(), Host{}, g.record); err != nil || !is(path, "never") {
		t.Errorf("%v", err)
	}
	if err := file(filepath.Join(dir, "none"), "1").make(t.Context(), Host{}, g.record); err == nil {
		t.Error("what is not there was set")
	}
	if err := g.end(); err != nil || !is(path, "always") {
		t.Errorf("it is not as before: %v", err)
	}
	code, err := For(t.Context(), os.Args[0], plan.Link{}, "lo", nil, []string{"sh", "-c", "exit 3"}, warn)
	if code != 3 || err != nil || warnings != nil {
		t.Errorf("got %d, %v, %q", code, err, warnings)
	}
}

func TestSettings(t *testing.T) {
	all, err := settings(plan.Link{MTU: 9000, Offloads: "off", Rate: "1gbit", Loss: "0.1%", Profile: "kernel-optimizations"}, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, s := range all {
		text += s.what + "=" + s.value + "\n"
	}
	for _, want := range []string{"/proc/sys/net/core/rmem_max=16777216\n", "mtu=9000\n", "gro=off\n", "queue=tbf rate 1gbit burst 2mb latency 10ms\n", "loss=0.1%\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in %s", want, text)
		}
	}
	if _, err := settings(plan.Link{Loss: "200%"}, "eth0"); err == nil {
		t.Error("more than all is lost")
	}
	if _, err := lost("0.0001%"); err == nil {
		t.Error("nothing is lost")
	}
	if n, err := lost("0.1%"); err != nil || n != 100 {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := settings(plan.Link{Profile: "none"}, "eth0"); err == nil {
		t.Error("a profile that is not there")
	}
}

// TestRootQueue: the kernel's default queue counts as none, the link's queue is
// recognized by its rate, and any other queue is left unchanged.
func TestRootQueue(t *testing.T) {
	queue := queueing(plan.Link{Rate: "10gbit"})
	for said, want := range map[string]string{
		"":                               "",
		"qdisc noqueue 0: root refcnt 2": "",
		"qdisc mq 0: root\nqdisc fq_codel 0: parent :1 limit 10240p":                      "",
		"qdisc fq 0: root refcnt 2 limit 10000p":                                          "",
		"qdisc tbf 8001: root refcnt 2 rate 10Gbit burst 2Mb lat 10ms":                    queue,
		"qdisc tbf 8001: root refcnt 2 rate 10000Mbit burst 2Mb lat 10ms":                 queue,
		"qdisc tbf 8001: root refcnt 2 rate 1Gbit burst 2Mb lat 10ms":                     "error",
		"qdisc htb 1: root refcnt 2 r2q 10 default 0x10":                                  "error",
		"qdisc htb 1: root refcnt 2\nqdisc tbf 10: parent 1:10 rate 10Gbit burst 125000b": "error",
	} {
		got, err := ask(t.Context(), []string{"sh", "-c", `printf '%s\n' "$1" | ` + rootQueue(queue, "10gbit"), "sh", said})
		first, _, _ := strings.Cut(said, "\n")
		if err != nil && strings.Contains(err.Error(), "of somebody else") && strings.Contains(err.Error(), first) {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", said, got, want)
		}
	}
}

// TestShareOfMemory: a limit in bytes is restored, although the kernel clears it when a
// percentage is written.
func TestShareOfMemory(t *testing.T) {
	dir := t.TempDir()
	ratio, bytes := filepath.Join(dir, "dirty_ratio"), filepath.Join(dir, "dirty_bytes")
	for _, c := range []struct{ ratio, bytes string }{{"20", "0"}, {"0", "4194304"}} {
		write(t, ratio, c.ratio+"\n")
		write(t, bytes, c.bytes+"\n")
		s := share(ratio, bytes, "10")
		var undo Undo
		record := func(u Undo) error {
			undo = u
			write(t, bytes, "0\n") // what the kernel does
			return nil
		}
		if err := s.make(t.Context(), Host{}, record); err != nil || !is(ratio, "10") {
			t.Errorf("%v: %v", c, err)
		}
		if c.bytes != "0" {
			write(t, ratio, "0\n") // what the kernel does, later
		}
		if err := undo.do(t.Context()); err != nil || !is(ratio, c.ratio) || !is(bytes, c.bytes) {
			t.Errorf("%v: %v, it is not as before", c, err)
		}
	}
	all, err := settings(plan.Link{Profile: "latency-performance"}, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	known := 0
	for _, s := range all {
		if strings.Contains(s.get, "/proc/sys/vm/dirty_bytes") || strings.Contains(s.get, "/proc/sys/vm/dirty_background_bytes") {
			known++
		}
	}
	if known != 2 {
		t.Errorf("%d of the two limits of the profile know their other form", known)
	}
}

// host returns a network namespace with an interface d0, which belongs to a
// process that can be ended. Commands run in another network namespace.
func host(t *testing.T) (pid string, end func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces of others are root's")
	}
	command := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-c", "ip link add d0 type veth peer name d1 && ip link set lo up && echo ready && exec sleep 1000")
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	end = func() {
		once.Do(func() {
			_ = command.Process.Kill()
			_ = command.Wait() // it was killed
		})
	}
	t.Cleanup(end)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	return strconv.Itoa(command.Process.Pid), end
}

// TestHostWithoutProcess: settings in a network namespace are undone even if the process
// that named it has ended.
func TestHostWithoutProcess(t *testing.T) {
	pid, end := host(t)
	namespace, err := os.Open("/proc/" + pid + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	there := Host{fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), namespace.Fd())}
	mtu := func() string {
		said, err := ask(t.Context(), there.command("cat /proc/sys/net/ipv6/conf/d0/mtu"))
		if err != nil {
			t.Fatal(err)
		}
		return said
	}
	before := mtu()
	var warnings []string
	warn := func(what string) {
		warnings = append(warnings, what)
	}
	dir := t.TempDir()
	// The command waits until the process of the host has been ended.
	go func() {
		for t.Context().Err() == nil {
			if _, err := os.Stat(filepath.Join(dir, "set")); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		end()
		_ = os.WriteFile(filepath.Join(dir, "ended"), nil, 0o600)
	}()
	wait := `nsenter --net=` + there.Namespace + ` cat /proc/sys/net/ipv6/conf/d0/mtu >"$1/mtu"; touch "$1/set"; until [ -e "$1/ended" ]; do sleep 0.01; done`
	code, err := For(t.Context(), os.Args[0], plan.Link{MTU: 1400}, "d0", []string{pid}, []string{"sh", "-c", wait, "sh", dir}, warn)
	if code != 0 || err != nil || warnings != nil {
		t.Fatalf("got %d, %v, %q", code, err, warnings)
	}
	if !is(filepath.Join(dir, "mtu"), "1400") {
		t.Error("it was not set")
	}
	if now := mtu(); now != before {
		t.Errorf("it is %s, and was %s", now, before)
	}
}

// TestDevice: a missing interface is reported before any change. A missing program is
// reported as such, not as an unsupported setting.
func TestDevice(t *testing.T) {
	pid, _ := host(t)
	ran := filepath.Join(t.TempDir(), "ran")
	_, err := For(t.Context(), os.Args[0], plan.Link{MTU: 1400}, "eth7", []string{pid}, []string{"touch", ran}, func(string) {})
	if _, wrong := os.Stat(ran); err == nil || !strings.Contains(err.Error(), "look for the interface eth7") || wrong == nil {
		t.Errorf("without the interface: %v", err)
	}
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Fatal(err)
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, to := range map[string]string{"ip": ip, "nsenter": nsenter, "sh": "/bin/sh", "sed": "/bin/sed", "true": "/bin/true"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	var warnings []string
	code, err := For(t.Context(), os.Args[0], plan.Link{Profile: "nic-optimizations"}, "d0", []string{pid}, []string{"true"}, func(what string) { warnings = append(warnings, what) })
	if err == nil || !strings.Contains(err.Error(), "no setting of the link could be made") || len(warnings) != 4 {
		t.Errorf("got %d, %v, %q", code, err, warnings)
	}
	for _, what := range warnings {
		if !strings.Contains(what, "ethtool: not found") {
			t.Errorf("without ethtool: %s", what)
		}
	}
}

// TestGone: settings of an interface that no longer exists need no undo. If its
// existence cannot be determined, a failed undo is still reported.
func TestGone(t *testing.T) {
	path := os.Getenv("PATH")
	for what, removed := range map[string]bool{"the interface is gone": true, "ip is missing": false} {
		pid, _ := host(t)
		there := Host{"/proc/" + pid + "/ns/net"}
		all, err := settings(plan.Link{MTU: 1400}, "d0")
		if err != nil {
			t.Fatal(err)
		}
		var undo Undo
		if err := all[0].make(t.Context(), there, func(u Undo) error { undo = u; return nil }); err != nil {
			t.Fatal(err)
		}
		if undo.gone(t.Context()) {
			t.Errorf("%s: before, too", what)
		}
		if removed {
			_, err = ask(t.Context(), there.command("ip link delete d0"))
		} else {
			dir := t.TempDir()
			for _, name := range []string{"nsenter", "sh", "sed"} {
				program, wrong := exec.LookPath(name)
				err = errors.Join(err, wrong, os.Symlink(program, filepath.Join(dir, name)))
			}
			t.Setenv("PATH", dir)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := undo.do(t.Context()); err == nil || undo.gone(t.Context()) != removed {
			t.Errorf("%s: %v, gone: %v", what, err, !removed)
		}
		t.Setenv("PATH", path)
	}
}

// TestLossIsSeen: any user can see the loss in the interface's alias, which records
// need. The end of the link restores the former alias.
func TestLossIsSeen(t *testing.T) {
	pid, _ := host(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("there is no nft")
	}
	there := Host{"/proc/" + pid + "/ns/net"}
	alias := func() string {
		said, err := ask(t.Context(), there.command("ip -o link show dev d0"))
		if err != nil {
			t.Fatal(err)
		}
		_, alias, _ := strings.Cut(said, "alias ")
		return alias
	}
	seen := filepath.Join(t.TempDir(), "seen")
	for _, before := range []string{"", "uplink 7"} {
		if _, err := ask(t.Context(), there.command(`ip link set d0 alias "$1"`, before)); err != nil {
			t.Fatal(err)
		}
		var warnings []string
		code, err := For(t.Context(), os.Args[0], plan.Link{Loss: "0.1%"}, "d0", []string{pid},
			[]string{"sh", "-c", "nsenter --net=" + there.Namespace + ` ip -o link show dev d0 >"$1"`, "sh", seen}, func(what string) { warnings = append(warnings, what) })
		text, wrong := os.ReadFile(seen)
		if code != 0 || err != nil || warnings != nil || wrong != nil || !strings.HasSuffix(string(text), "alias "+record.LossAlias+"0.1%\n") {
			t.Errorf("got %d, %v, %q: %s %v", code, err, warnings, text, wrong)
		}
		if now := alias(); now != before {
			t.Errorf("the name is %q, and was %q", now, before)
		}
	}
	// Without a rule the alias is not set.
	all, err := settings(plan.Link{Loss: "0.1%"}, "d0")
	if err != nil {
		t.Fatal(err)
	}
	if err := all[len(all)-1].make(t.Context(), there, func(Undo) error { return nil }); err == nil || alias() != "uplink 7" {
		t.Errorf("a loss that is not there is said: %v", err)
	}
}
