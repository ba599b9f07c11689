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
	if n, err := lost("0.1%"); err != nil || n != 100 {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := settings(plan.Link{Profile: "none"}, "eth0"); err == nil {
		t.Error("a profile that is not there")
	}
}
