package mounter

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inside runs the test again in new user and mount namespaces, where it may
// mount. It reports whether this is the inner run.
func inside(t *testing.T) bool {
	t.Helper()
	const mark = "MOUNTER_TEST_INSIDE"
	if os.Getenv(mark) != "" {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mark+"=1", "TMPDIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		if _, ran := err.(*exec.ExitError); !ran {
			t.Skipf("no user namespace here: %v", err)
		}
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		words string
		flags uintptr
		data  string
		props int
	}{
		{"bind", unix.MS_BIND, "", 0},
		{"rbind rslave", unix.MS_BIND | unix.MS_REC, "", 1},
		{"bind remount ro", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY, "", 0},
		{"ro rw", 0, "", 0},
		{"size=64k mode=0755 nosuid", unix.MS_NOSUID, "size=64k,mode=0755", 0},
		{"size=1,noexec", unix.MS_NOEXEC, "size=1", 0},
		{"_netdev x-systemd.automount defaults", 0, "", 0},
		{"", 0, "", 0},
	} {
		got := parse(strings.Fields(c.words))
		if got.flags != c.flags || got.data != c.data || len(got.propagation) != c.props {
			t.Errorf("parse(%q) = %+v", c.words, got)
		}
	}
}

func TestMounts(t *testing.T) {
	if !inside(t) {
		return
	}
	m, dir := New(), t.TempDir()
	path := func(name string) string {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	flagsOf := func(p string) uintptr {
		t.Helper()
		f, err := mountFlags(p)
		do(err)
		return f
	}

	tmp := path("tmpfs")
	do(m.Mount("tmpfs", tmp, "tmpfs", []string{"size=64k", "nodev", "nosuid"}))
	var s unix.Statfs_t
	do(unix.Statfs(tmp, &s))
	if size := s.Blocks * uint64(s.Bsize); size != 64<<10 {
		t.Errorf("tmpfs of %d bytes, want 64 KiB", size)
	}
	if flagsOf(tmp)&(unix.MS_NODEV|unix.MS_NOSUID) != unix.MS_NODEV|unix.MS_NOSUID {
		t.Error("tmpfs lacks nodev or nosuid")
	}
	do(os.WriteFile(filepath.Join(tmp, "file"), []byte("x"), 0o600))

	ro := path("ro")
	do(m.Mount(tmp, ro, "", []string{"bind", "ro"}))
	if f := flagsOf(ro); f&unix.MS_RDONLY == 0 || f&unix.MS_NODEV == 0 {
		t.Errorf("flags of the read-only bind mount are %#x", f)
	}
	if flagsOf(tmp)&unix.MS_RDONLY != 0 {
		t.Error("binding read-only made the source read-only")
	}
	if err := os.WriteFile(filepath.Join(ro, "file"), nil, 0o600); err == nil {
		t.Error("wrote through the read-only mount")
	}
	do(m.Mount(tmp, ro, "", []string{"bind", "remount", "ro", "noexec"}))
	if flagsOf(ro)&unix.MS_NOEXEC == 0 {
		t.Error("remount did not set noexec")
	}

	// A sub-path: the source is a descriptor, the target a file.
	f, err := os.Open(filepath.Join(tmp, "file"))
	do(err)
	target := filepath.Join(path("sub"), "file")
	do(os.WriteFile(target, nil, 0o600))
	do(m.MountSensitiveWithoutSystemdWithMountFlags(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), target, "", []string{"bind"}, nil, []string{"--no-canonicalize"}))
	do(f.Close())
	if b, _ := os.ReadFile(target); string(b) != "x" {
		t.Errorf("sub-path holds %q", b)
	}

	shared := path("shared")
	do(makeRShared(shared))
	do(makeRShared(shared))
	if info := mountinfo(t, shared); !strings.Contains(info, "shared:") {
		t.Errorf("not shared: %s", info)
	}
	do(m.Mount("", shared, "", []string{"rprivate"}))
	if info := mountinfo(t, shared); strings.Contains(info, "shared:") {
		t.Errorf("still shared: %s", info)
	}

	err = m.MountSensitive("none", path("bad"), "nosuchfs", []string{"a=b"}, []string{"password=secret"})
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "nosuchfs") {
		t.Errorf("error is %v", err)
	}

	for _, p := range []string{target, ro, shared, tmp, tmp} { // the second time it is not a mount point
		do(m.Unmount(p))
	}
	if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(b), dir) {
		t.Errorf("mounts are left:\n%s", b)
	}
	if err := m.Unmount(filepath.Join(dir, "absent")); err == nil {
		t.Error("unmounting an absent path is no error")
	}
}

func mountinfo(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if f := strings.Fields(line); len(f) > 4 && f[4] == path {
			return line
		}
	}
	return ""
}
