package bundle

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

const mountinfo = `22 1 0:20 / / rw - overlay overlay rw
23 22 0:21 / /home rw - nfs4 server:/home rw
24 22 0:22 / /home/my\040own rw - ext4 /dev/sda1 rw
25 22 0:23 / /data rw - ext4 /dev/sdb1 rw
26 25 0:24 / /data/fast rw - lustre mds:/fast rw
27 22 0:25 / /over rw - nfs server:/x rw
28 22 0:26 / /over rw - tmpfs tmpfs rw
29 22 0:27 / /disk rw - vendorfs /dev/x rw
30 22 0:27 /run /var/lib/kubelet rw - vendorfs /dev/x rw
31 30 0:21 /alice /var/lib/kubelet/pods/1/volume-subpaths/home rw - nfs4 server:/home rw
`

func testMounts(t *testing.T) mounts {
	path := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(path, []byte(mountinfo), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := readMounts(path)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestSharedKind(t *testing.T) {
	all := testMounts(t)
	for path, want := range map[string]string{
		"/home": "nfs4", "/home/alice/x": "nfs4", "/homes": "", "/home/my own/x": "", "/": "nfs4",
		"/data": "lustre", "/data/slow": "", "/data/fast/x": "lustre", "/over/x": "", "/var/x": "",
		// An unknown kind; the files of the run lie on it.
		"/disk/x": "", "/var/lib/kubelet/pods/1/volumes/x": "", "/var/lib/kubelet/pods/1/volume-subpaths/home": "nfs4",
	} {
		if got := all.sharedKind(path); got != want {
			t.Errorf("%s lies on %q, want %q", path, got, want)
		}
	}
	for _, kind := range []string{"fuse.sshfs", "wekafs", "nfs", "vendorfs"} {
		if !isShared(kind) {
			t.Errorf("%s is not taken for shared", kind)
		}
	}
}

// volume returns a container that runs as a user, with a volume at /data.
func volume(uid, gid uint32, source string, options ...string) *specs.Spec {
	all := []string{"CAP_CHOWN", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"}
	return &specs.Spec{
		Process: &specs.Process{
			User:         specs.User{UID: uid, GID: gid},
			Capabilities: &specs.LinuxCapabilities{Bounding: slices.Clone(all), Effective: slices.Clone(all), Permitted: slices.Clone(all)},
		},
		Mounts: []specs.Mount{
			{Destination: "/etc/hosts", Type: "bind", Source: "/var/lib/kubelet/pods/1/etc-hosts"},
			{Destination: "/data", Type: "bind", Source: source, Options: append([]string{"rbind"}, options...)},
		},
		Annotations: map[string]string{podName: "p", containerName: "c"},
	}
}

func TestGuardOwners(t *testing.T) {
	for name, test := range map[string]struct {
		spec             *specs.Spec
		node             Node
		readOnly, pinned bool
		reason           string
	}{
		"another user, shared":           {spec: volume(1000, 1000, "/home/alice"), readOnly: true, reason: reasonReadOnly},
		"another group, shared":          {spec: volume(0, 7, "/home/alice"), readOnly: true, reason: reasonReadOnly},
		"another user, shared below":     {spec: volume(1000, 0, "/data"), readOnly: true, reason: reasonReadOnly},
		"another user, read-only anyway": {spec: volume(1000, 1000, "/home/alice", "ro")},
		"another user, local":            {spec: volume(1000, 1000, "/var/x"), reason: reasonForeign},
		"another user, the pod's own":    {spec: volume(1000, 1000, "/var/lib/kubelet/pods/1/volumes/x")},
		"root, shared":                   {spec: volume(0, 0, "/home/alice"), pinned: true, reason: reasonPinned},
		"root, shared, read-only":        {spec: volume(0, 0, "/home/alice", "ro")},
		"root, local":                    {spec: volume(0, 0, "/var/x")},
		"one user":                       {spec: volume(1000, 1000, "/home/alice"), node: Node{OneUID: true}},
	} {
		t.Run(name, func(t *testing.T) {
			test.node.GuardOwners, test.node.mounts = true, testMounts(t)
			c := test.node.patch(test.spec)
			var reason string
			for _, n := range c.Notices {
				reason += n.Reason
				if !strings.Contains(n.Message, "/data") || strings.Contains(n.Message, "/etc/hosts") {
					t.Errorf("notice %q", n.Message)
				}
			}
			if reason != test.reason || c.Pinned != test.pinned || slices.Contains(test.spec.Mounts[1].Options, "rro") != test.readOnly {
				t.Errorf("notices %v, pinned %v, options %q", c.Notices, c.Pinned, test.spec.Mounts[1].Options)
			}
			if p := test.spec.Process; p.NoNewPrivileges != test.pinned || slices.Contains(p.Capabilities.Bounding, "CAP_SETUID") == test.pinned {
				t.Errorf("pinned %v, but %v %v", test.pinned, p.NoNewPrivileges, p.Capabilities.Bounding)
			}
			later := volume(0, 0, "").Process
			test.node.Exec(c, later)
			if later.NoNewPrivileges != test.pinned {
				t.Errorf("a process that is started later: %+v", later)
			}
		})
	}
	spec := volume(1000, 1000, "/home/alice")
	if c := (Node{mounts: testMounts(t)}).patch(spec); len(c.Notices) > 0 || len(spec.Mounts[1].Options) != 1 {
		t.Error("guarded though it is switched off")
	}
}
