package probe

import (
	"io/fs"
	"testing"
	"testing/fstest"
)

func TestInUse(t *testing.T) {
	root := fstest.MapFS{}
	write := func(name, text string) { root[name] = &fstest.MapFile{Data: []byte(text)} }
	link := func(name, target string) {
		root[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
	}
	write("proc/1/status", "Name:\tinit\nUid:\t0\t0\t0\t0\nThreads:\t9\n")
	write("proc/20/status", "Name:\tone\nUid:\t1000\t1000\t1000\t1000\nThreads:\t3\n")
	write("proc/30/status", "Name:\ttwo\nUid:\t1000\t0\t0\t0\nThreads:\t4\n")
	write("proc/loadavg", "0.20 0.18 0.12 1/80 11206\n")
	write("proc/key-users", "    0:    23 22/22 12/200 300/20000\n 1000:    7 6/6 5/200 100/20000\n")
	link("proc/20/fd/3", "anon_inode:inotify")
	link("proc/20/fd/4", "socket:[5]")
	link("proc/30/fd/0", "anon_inode:inotify")
	link("proc/20/ns/net", "net:[1]")
	link("proc/30/ns/net", "net:[2]")
	link("proc/self/ns/net", "net:[1]")
	u := inUse{files{root}, 1000}
	for what, n := range map[string][2]uint64{
		"threads of the user":    {u.ownThreads(), 7},
		"threads of the machine": {u.allThreads(), 80},
		"inotify instances":      {u.inotifyInstances(), 2},
		"keys":                   {u.keys(), 5},
		"other namespaces":       {u.namespaces("net"), 1},
	} {
		if n[0] != n[1] {
			t.Errorf("%s: %d, want %d", what, n[0], n[1])
		}
	}
	if u := (inUse{files{fstest.MapFS{}}, 1000}); u.ownThreads()+u.allThreads()+u.inotifyInstances()+u.keys()+u.namespaces("net") != 0 {
		t.Error("counts without any file")
	}
}
