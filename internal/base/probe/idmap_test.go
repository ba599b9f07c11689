package probe

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

// useradd's files on RHEL 9, Ubuntu 24.04 and Debian 12 share this format; only
// the users differ.
const (
	passwd = "root:x:0:0:root:/root:/bin/bash\nalice:x:1000:1000::/home/alice:/bin/bash\n"
	fullID = "         0          0 4294967295\n"
	plain  = "NoNewPrivs:\t0\nSeccomp:\t0\nCapBnd:\t000001ffffffffff\n"
)

// mapper returns a machine with a working newuidmap.
func mapper(subid string, more ...string) machine {
	files := with(map[string]string{
		"/etc/passwd": passwd, "/etc/subuid": subid, "/etc/subgid": subid,
		"/proc/self/uid_map": fullID, "/proc/self/gid_map": fullID, "/proc/self/status": plain,
		"/usr/bin/newuidmap": "", "/usr/bin/newgidmap": "",
	}, more...)
	return machine{files: files, uid: 1000, env: map[string]string{"PATH": "/usr/local/bin:/usr/bin"},
		privileged: map[string]string{"/usr/bin/newuidmap": "setuid", "/usr/bin/newgidmap": "file capabilities"}}
}

func TestIDMap(t *testing.T) {
	ldap := mapper("zoe:200000:65536\n")
	ldap.uid, ldap.env = 50123, map[string]string{"PATH": "/usr/bin", "SLURM_JOB_USER": "zoe", "SLURM_JOB_UID": "50123"}
	shell := mapper("zoe:200000:65536\n")
	shell.uid, shell.env = 50123, map[string]string{"PATH": "/usr/bin", "USER": "zoe"}
	noPath := mapper("alice:100000:65536\n")
	noPath.env = nil
	elsewhere := mapper("alice:100000:65536\n")
	elsewhere.env = map[string]string{"PATH": "/opt/bin"}
	unprivileged := mapper("alice:100000:65536\n")
	unprivileged.privileged = nil
	nosuid := mapper("alice:100000:65536\n")
	nosuid.filesystems = map[string]filesystem{"/usr": {NoSUID: true}}

	own := IDRange{0, 1000, 1}
	tests := []struct {
		name    string
		machine machine
		uids    []IDRange
		reason  string
		remedy  string
	}{
		{"usual", mapper("root:10000:1\nalice:100000:65536\nbob:165536:65536\n"), []IDRange{own, {1, 100000, 65536}}, "", ""},
		{"by number", mapper("1000:100000:65536\n"), []IDRange{own, {1, 100000, 65536}}, "", ""},
		{"by name and number", mapper("alice:100000:65536\n1000:100000:65536\n"), []IDRange{own, {1, 100000, 65536}}, "", ""},
		{"two ranges", mapper("alice:300000:1000\nalice:100000:65536\n"), []IDRange{own, {1, 100000, 65536}, {65537, 300000, 1000}}, "", ""},
		{"overlapping ranges", mapper("alice:100000:65536\nalice:132768:65536\n"), []IDRange{own, {1, 100000, 65536}, {65537, 165536, 32768}}, "", ""},
		{"own id inside", mapper("alice:500:65536\n"), []IDRange{own, {1, 500, 500}, {501, 1001, 65035}}, "", ""},
		{"LDAP user in a job", ldap, []IDRange{{0, 50123, 1}, {1, 200000, 65536}}, "", ""},
		{"LDAP user in a shell", shell, []IDRange{{0, 50123, 1}, {1, 200000, 65536}}, "", ""},
		{"job without PATH", noPath, []IDRange{own, {1, 100000, 65536}}, "", ""},
		{"too few", mapper("alice:100000:1000\n"), []IDRange{own, {1, 100000, 1000}}, "only 1001 uids", "echo alice:101000:65536 | tee -a /etc/subuid >> /etc/subgid"},
		{"none", mapper("bob:165536:65536\n"), []IDRange{own}, "no subordinate ids for alice", "echo alice:231072:65536 | tee -a /etc/subuid >> /etc/subgid"},
		{"only uids", mapper("alice:100000:65536\n", "/etc/subgid", ""), []IDRange{own}, "only one of", "echo alice:165536:65536"},
		{"broken lines", mapper("alice:x:65536\nalice:100000\n:1:2\n#alice:1:65536\nalice:100000:0\nalice:4294967290:65536\nalice:-1:5\n"), []IDRange{own}, "no subordinate ids", "echo"},
		{"no program", elsewhere, []IDRange{own}, "newuidmap is not in PATH", "uidmap"},
		{"no privilege", unprivileged, []IDRange{own}, "neither setuid", "setcap cap_setuid+ep /usr/bin/newuidmap"},
		{"nosuid", nosuid, []IDRange{own}, "mounted nosuid", "remount"},
		{"no_new_privs", mapper("alice:100000:65536\n", "/proc/self/status", "NoNewPrivs:\t1\n"), []IDRange{own}, "no_new_privs", "NoNewPrivileges="},
		{"bounding set", mapper("alice:100000:65536\n", "/proc/self/status", "NoNewPrivs:\t0\nCapBnd:\t0000000000000000\n"), []IDRange{own}, "bounding set", "CapabilityBoundingSet"},
		{"inside of a container", mapper("alice:100000:65536\n", "/proc/self/uid_map", "0 100000 65536\n"), []IDRange{own}, "not mapped in the user namespace", ""},
		{"sssd", mapper("alice:100000:65536\n", "/etc/nsswitch.conf", "passwd: sss files\nsubid: sss # ids\n"), []IDRange{own}, "name service", ""},
		{"nsswitch files", mapper("alice:100000:65536\n", "/etc/nsswitch.conf", "passwd: files\nsubid: files\n"), []IDRange{own, {1, 100000, 65536}}, "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := test.machine.host().IDMap(test.machine.uid, test.machine.uid)
			if !reflect.DeepEqual(got.UIDs, test.uids) {
				t.Errorf("uids %v, want %v (%s)", got.UIDs, test.uids, got.Reason)
			}
			if got.OneUID != (len(test.uids) == 1) || got.Complete != (test.reason == "") {
				t.Errorf("OneUID %v, Complete %v", got.OneUID, got.Complete)
			}
			if !strings.Contains(got.Reason, test.reason) || (test.reason == "") != (got.Reason == "") {
				t.Errorf("reason %q, want %q", got.Reason, test.reason)
			}
			if !strings.Contains(got.Remedy.Admin, test.remedy) {
				t.Errorf("remedy %q, want %q", got.Remedy.Admin, test.remedy)
			}
		})
	}
}

func TestAskNameService(t *testing.T) {
	script := func(body string) string {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "getsubids"), []byte("#!/bin/sh\n"+body), 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	m := mapper("alice:100000:65536\n", "/etc/nsswitch.conf", "subid: sss\n")
	first := m.host().IDMap(1000, 1000)

	t.Setenv("PATH", script(`[ "$1" = -g ] && echo "0: alice 700000 65536" || echo "0: alice 600000 65536"`))
	got := m.host().AskNameService(t.Context(), first, 1000, 1000)
	if got.OneUID || got.UIDs[1] != (IDRange{1, 600000, 65536}) || got.GIDs[1] != (IDRange{1, 700000, 65536}) || got.Reason != "" {
		t.Errorf("got %+v", got)
	}
	t.Setenv("PATH", script("exit 1"))
	if got := m.host().AskNameService(t.Context(), first, 1000, 1000); !got.OneUID || !strings.Contains(got.Reason, "getsubids alice fails") {
		t.Errorf("got %+v", got)
	}
	t.Setenv("PATH", t.TempDir())
	if got := m.host().AskNameService(t.Context(), first, 1000, 1000); !got.OneUID || !strings.Contains(got.Remedy.Admin, "getsubids") {
		t.Errorf("got %+v", got)
	}
}

func TestParseGetsubids(t *testing.T) {
	got := parseGetsubids([]byte("0: alice 100000 65536\n1: alice 300000 65536\nError fetching ranges\n"))
	if want := []subRange{{100000, 65536}, {300000, 65536}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestSubIDOverlap(t *testing.T) {
	for subid, want := range map[string]string{
		"alice:100000:65536\nbob:165536:65536\n":   "",
		"alice:100000:65536\nbob:165535:65536\n":   "to bob as well",
		"alice:100000:65536\n1000:100000:65536\n":  "",
		"alice:0:65536\n":                          "holds the id of user",
		"alice:100000:65536\ncarol:100000:65536\n": "to carol as well",
	} {
		got := subIDOverlap(mapper(subid).host())
		if !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%q: got %q", subid, got)
		}
	}
}

func FuzzParseSubIDs(f *testing.F) {
	f.Add([]byte("alice:100000:65536\n1000:1:4294967295\n"))
	f.Add([]byte("alice:4294967295:1\nalice:0:4294967295\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		fuzzbound.Watch(t)
		var ranges []subRange
		for _, entry := range parseSubIDs(content) {
			ranges = append(ranges, entry.subRange)
		}
		// Whatever the files say, the kernel must accept the map.
		seen := map[uint32]bool{}
		inside := uint64(0)
		for _, line := range mapLines(1000, ranges) {
			if uint64(line.Inside) != inside || line.Count == 0 || seen[line.Outside] {
				t.Fatalf("%q: line %+v after %d ids", content, line, inside)
			}
			seen[line.Outside] = true
			inside += uint64(line.Count)
			if uint64(line.Outside)+uint64(line.Count) > 1<<32-1 {
				t.Fatalf("%q: line %+v ends beyond the ids", content, line)
			}
			if line.Inside != 0 && line.Outside <= 1000 && 1000 < uint64(line.Outside)+uint64(line.Count) {
				t.Fatalf("%q: the user is mapped twice", content)
			}
		}
	})
}

func FuzzParseIDMap(f *testing.F) {
	f.Add([]byte(fullID))
	f.Fuzz(func(t *testing.T, content []byte) {
		fuzzbound.Watch(t)
		mapped([]subRange{{100000, 65536}}, parseIDMap(content))
	})
}
