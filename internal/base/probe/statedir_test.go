package probe

import (
	"strings"
	"testing"
)

func TestStateDir(t *testing.T) {
	mounts := func(name string, more ...string) map[string]string {
		return with(map[string]string{"/proc/self/mountinfo": testFile(t, "mountinfo."+name), "/tmp": "tmpdir", "/var/tmp": "tmpdir", "/dev/shm": "tmpdir", "/proc/sys/kernel/osrelease": "6.12.0\n"}, more...)
	}
	usual := []string{"/tmp", "/var/tmp", "/dev/shm", "/local/scratch/alice", "/srv/full"}
	const plenty = 100 << 30
	tests := []struct {
		name       string
		machine    machine
		candidates []string
		best       string
		kind       Kind
		rejected   map[string]string // path to a part of the reason
	}{
		{"RHEL 9 job with its own /tmp", machine{files: mounts("rhel9-job"), writable: usual},
			[]string{"/home/alice", "/tmp", "/var/tmp", "/dev/shm"}, "/tmp", KindDisk,
			map[string]string{"/home/alice": "nfs4 is a network file system", "/var/tmp": "usable, but /tmp is better", "/dev/shm": "better"}},
		{"the named place first", machine{files: mounts("rhel9-job", "/local/scratch/alice", "dir"), writable: usual},
			[]string{"/local/scratch/alice", "/tmp"}, "/local/scratch/alice", KindDisk, map[string]string{"/tmp": "better"}},
		{"Lustre refused with a better place", machine{files: mounts("rhel9-job"), writable: usual},
			[]string{"/scratch/alice", "/tmp"}, "/tmp", KindDisk, map[string]string{"/scratch/alice": "; use /tmp"}},
		{"link to NFS", machine{files: mounts("rhel9-job", "/work", "-> home/alice"), writable: usual},
			[]string{"/work", "/tmp"}, "/tmp", KindDisk, map[string]string{"/work": "nfs4"}},
		{"link to Lustre and on", machine{files: mounts("rhel9-job", "/work", "-> /scratch"), writable: usual},
			[]string{"/work/me/tmp", "/tmp"}, "/tmp", KindDisk, map[string]string{"/work/me/tmp": "lustre"}},
		{"endless link", machine{files: mounts("rhel9-job", "/loop", "-> /loop"), writable: usual},
			[]string{"/loop", "/tmp"}, "/tmp", KindDisk, map[string]string{"/loop": "cannot be looked at"}},
		{"noexec tmpfs after the disk", machine{files: mounts("ubuntu2404"), writable: usual, filesystems: map[string]filesystem{
			"/": {FreeBytes: plenty}, "/tmp": {FreeBytes: plenty, NoExec: true}}},
			[]string{"/tmp", "/var/tmp"}, "/var/tmp", KindDisk, map[string]string{"/tmp": "better"}},
		{"sshfs refused", machine{files: mounts("ubuntu2404", "/mnt/with space", "dir"), writable: append(usual, "/mnt/with space")},
			[]string{"/mnt/with space", "/tmp"}, "/tmp", KindMemory, map[string]string{"/mnt/with space": "served by a process"}},
		{"diskless", machine{files: mounts("diskless"), writable: usual}, []string{"/var/tmp", "/tmp", "/dev/shm"}, "/var/tmp", KindMemory,
			map[string]string{"/tmp": "better", "/dev/shm": "better"}},
		{"Cray", machine{files: mounts("cray", "/opt/x", "dir"), writable: append(usual, "/opt/x")}, []string{"/home/a", "/var/tmp", "/tmp", "/opt/x"}, "/tmp", KindMemory,
			map[string]string{"/home/a": "gpfs", "/var/tmp": "dvs", "/opt/x": "better"}},
		{"little space", machine{files: mounts("rhel9-job"), writable: usual, filesystems: map[string]filesystem{"/": {FreeBytes: 1 << 30}, "/tmp": {FreeBytes: 100 << 20}}},
			[]string{"/tmp", "/var/tmp"}, "/var/tmp", KindDisk, map[string]string{"/tmp": "only 100.0 MiB free"}},
		{"no inodes", machine{files: mounts("rhel9-job"), writable: usual, filesystems: map[string]filesystem{"/": {FreeBytes: plenty}, "/tmp": {FreeBytes: plenty, TotalInodes: 1000000, FreeInodes: 12}}},
			[]string{"/tmp", "/var/tmp"}, "/var/tmp", KindDisk, map[string]string{"/tmp": "12 inodes"}},
		{"nothing", machine{files: mounts("rhel9-job", "/etc/passwd", "", "/srv/open", "opendir"), filesystems: map[string]filesystem{"/": {ReadOnly: true, FreeBytes: plenty}}, writable: []string{"/tmp", "/srv/open"}},
			[]string{"", "relative", "/absent", "/etc/passwd", "/var/tmp", "/srv/open", "/tmp"}, "", "",
			map[string]string{"": "not an absolute path", "relative": "not an absolute path", "/absent": "file does not exist", "/etc/passwd": "not a directory",
				"/var/tmp": "not writable", "/srv/open": "sticky", "/tmp": "read-only"}},
		{"unknown to mountinfo", machine{files: with(nil, "/tmp", "tmpdir"), writable: usual, filesystems: map[string]filesystem{"/": {Magic: 0x0bd00bd0, FreeBytes: plenty}}},
			[]string{"/tmp"}, "", "", map[string]string{"/tmp": "0xbd00bd0 is a network"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			best, rejected := test.machine.host().StateDir(test.candidates)
			if best.Path != test.best || best.Path != "" && best.Kind != test.kind {
				t.Errorf("best %+v, want %s (%s)", best, test.best, test.kind)
			}
			if len(rejected) != len(test.rejected) {
				t.Errorf("rejected %+v", rejected)
			}
			for _, candidate := range rejected {
				if want := test.rejected[candidate.Path]; !strings.Contains(candidate.Reason, want) || candidate.Reason == "" {
					t.Errorf("%s: reason %q, want %q", candidate.Path, candidate.Reason, want)
				}
			}
		})
	}
}

func TestOverlayOnTmpfsNeedsLinux66(t *testing.T) {
	for release, want := range map[string]bool{"5.14.0-427.el9.x86_64": false, "6.5.0": false, "6.6.1": true, "6.18.4": true, "7.0.0": true} {
		m := machine{files: map[string]string{"/proc/self/mountinfo": "1 0 0:1 / / rw - tmpfs tmpfs rw\n", "/tmp": "tmpdir", "/proc/sys/kernel/osrelease": release + "\n"}, writable: []string{"/tmp"}}
		if best, _ := m.host().StateDir([]string{"/tmp"}); best.Path != "/tmp" || best.Overlay != want {
			t.Errorf("%s: %+v", release, best)
		}
	}
}

func TestCheckShared(t *testing.T) {
	h := machine{files: map[string]string{"/proc/self/mountinfo": testFile(t, "mountinfo.rhel9-job"), "/work": "-> home/alice", "/loop": "-> /loop"}}.host()
	for folder, want := range map[string]string{
		"/home/alice/.cache/berth": "", // on NFS, and not there yet
		"/scratch/alice/cache":     "", // on Lustre
		"/work/cache":              "",
		"/tmp/cache":               "other machines do not see",
		"/loop/cache":              "other machines do not see",
	} {
		if err := h.CheckShared(folder); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", folder, err, want)
		}
	}
}

func TestStateDirs(t *testing.T) {
	h := machine{env: map[string]string{"BERTH_STATE_DIR": "/mine", "TMPDIR": "/tmp"}}.host()
	if got := strings.Join(h.StateDirs(), " "); got != "/mine /tmp /local/scratch /localscratch /var/tmp /dev/shm" {
		t.Errorf("got %s", got)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536 << 20: "1.5 GiB", 1 << 63: "8.0 EiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
