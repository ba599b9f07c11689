package link

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/plan"
)

// TestMain is the guard and the process that is killed, too.
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
		err = errors.Join(err, s.make(context.Background(), Host{}, g.note))
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

// TestTakenBackWhenKilled: what was changed is as before, although nobody could do
// anything about the end.
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

// TestFor: the command sees the link, has its exit code told, and all is as before
// afterwards. What cannot be set is said.
func TestFor(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "one")
	write(t, path, "never [always] madvise\n")
	var told []string
	tell := func(what string) { told = append(told, what) }
	g, err := newGuard(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	// A file in brackets is what the kernel would show; here it then has what was written.
	if err := file(path, "never").make(t.Context(), Host{}, g.note); err != nil || !is(path, "never") {
		t.Errorf("%v", err)
	}
	if err := file(filepath.Join(dir, "none"), "1").make(t.Context(), Host{}, g.note); err == nil {
		t.Error("what is not there was set")
	}
	if err := g.end(); err != nil || !is(path, "always") {
		t.Errorf("it is not as before: %v", err)
	}
	code, err := For(t.Context(), os.Args[0], plan.Link{}, "lo", []Host{{}}, []string{"sh", "-c", "exit 3"}, tell)
	if code != 3 || err != nil || told != nil {
		t.Errorf("got %d, %v, %q", code, err, told)
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

// TestRootQueue: what the kernel has of itself is nothing, ours is known by its rate, and
// one of somebody else's is left as it is.
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

// TestShareOfMemory: a limit in bytes, which the kernel gives up when one in percent is
// written, comes back.
func TestShareOfMemory(t *testing.T) {
	dir := t.TempDir()
	ratio, bytes := filepath.Join(dir, "dirty_ratio"), filepath.Join(dir, "dirty_bytes")
	for _, c := range []struct{ ratio, bytes string }{{"20", "0"}, {"0", "4194304"}} {
		write(t, ratio, c.ratio+"\n")
		write(t, bytes, c.bytes+"\n")
		s := share(ratio, bytes, "10")
		var undo Undo
		note := func(u Undo) error {
			undo = u
			write(t, bytes, "0\n") // what the kernel does
			return nil
		}
		if err := s.make(t.Context(), Host{}, note); err != nil || !is(ratio, "10") {
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
