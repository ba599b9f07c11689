package berthd

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
	"berth.dev/berth/internal/testutil"
)

// The processes of a pod are killed by the daemon that started it, and by another
// one, which has to search for it. Both also work if the processes have already
// ended.
func TestProcessesOfAPodEnd(t *testing.T) {
	testutil.Require(t, testutil.Root)
	dir := t.TempDir()
	program := filepath.Join(dir, "berth-pod")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "pid"), 0o755); err != nil {
		t.Fatal(err)
	}
	newProcesses := func() *processes {
		return &processes{dir: filepath.Join(dir, "pid"), program: program, firsts: map[string]*os.Process{}}
	}
	for name, test := range map[string]struct{ another, ended bool }{"the same": {}, "another": {another: true}, "ended": {ended: true}} {
		t.Run(name, func(t *testing.T) {
			p := newProcesses()
			// Do it twice, as for two steps of a job.
			for range 2 {
				if err := p.start("1"); err != nil {
					t.Fatal(err)
				}
			}
			first := p.firsts["1"]
			if !vxlan.IsNamespace(p.file("1")) {
				t.Fatal("there is no namespace")
			}
			alive := func() bool {
				_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(first.Pid)))
				return err == nil
			}
			if test.ended {
				if err := first.Kill(); err != nil {
					t.Fatal(err)
				}
				testutil.Eventually(t, "the end of process 1", func() bool { return !alive() })
			}
			if test.another {
				p = newProcesses()
			}
			for range 2 {
				if err := p.end("1"); err != nil {
					t.Fatal(err)
				}
			}
			testutil.Eventually(t, "the end of process 1", func() bool { return !alive() })
			if _, err := os.Stat(p.file("1")); !os.IsNotExist(err) {
				t.Errorf("the file is left: %v", err)
			}
		})
	}
}

// If a job's number now belongs to another user, nothing of the former job is
// entered.
func TestAPodIsNotAnotherUsers(t *testing.T) {
	testutil.Require(t, testutil.Root)
	dir := t.TempDir()
	program := filepath.Join(dir, "berth-pod")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pid", "pods"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := siteconf.Config{Run: dir, Pod: program}
	d := newDaemon(config, "n0", netip.Addr{}, newStore(t, "10.128.0.0/24"), nil, slog.New(slog.DiscardHandler))
	defer func() {
		if err := d.pods.unmake("7"); err != nil {
			t.Error(err)
		}
	}()
	// The inode numbers of the network namespace and of the PID namespace.
	last := [2]uint64{}
	for _, step := range []struct {
		uid  uint32
		made bool
	}{{1001, true}, {1001, false}, {1002, true}} {
		r := request(7, step.uid)
		r.Nodes = []string{"n0"}
		a, err := d.store.Allocate(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		made, err := d.add(t.Context(), a)
		if err != nil || made != step.made {
			t.Fatalf("user %d: made %t, %v", step.uid, made, err)
		}
		if got := d.pods.local["7"].UID; got != step.uid {
			t.Errorf("the pod is user %d's, want %d's", got, step.uid)
		}
		var now [2]uint64
		for i, path := range []string{d.pods.namespace("7"), d.pods.processes.file("7")} {
			// Keep it open, or the next one may get its inode number.
			file, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			var stat unix.Stat_t
			if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
				t.Fatal(err)
			}
			now[i] = stat.Ino
			if (now[i] != last[i]) != step.made {
				t.Errorf("user %d: namespace %s is %d, was %d", step.uid, path, now[i], last[i])
			}
		}
		last = now
	}
	d.background.Wait()
	left, err := d.store.client.Get(t.Context(), networksKey, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range left.Kvs {
		if strings.Contains(string(kv.Key), "1001") {
			t.Errorf("the former user keeps %s", kv.Key)
		}
	}
}
