package probe

import (
	"os"
	"reflect"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func testFile(t testing.TB, name string) string {
	t.Helper()
	content, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestParseMountinfo(t *testing.T) {
	mounts := parseMountinfo([]byte(testFile(t, "mountinfo.ubuntu2404")))
	if len(mounts) != 9 {
		t.Fatalf("%d mounts, want 9", len(mounts))
	}
	want := mountEntry{ID: 75, Parent: 29, Root: "/", Point: "/mnt/with space", Options: []string{"rw", "relatime"},
		Type: "fuse.sshfs", Source: `bob@host:/data\x`, Super: []string{"rw", "user_id=1000", "group_id=1000"}}
	if got := mounts[8]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, broken := range []string{"", "\n", "1 2 3", "a 1 0:1 / / rw - ext4 x rw", "1 a 0:1 / / rw - ext4 x rw", "1 1 0:1 / / rw ext4 x rw", "1 1 0:1 / / rw -"} {
		if got := parseMountinfo([]byte(broken)); len(got) != 0 {
			t.Errorf("%q: got %+v", broken, got)
		}
	}
}

func TestMountOf(t *testing.T) {
	mounts := []mountEntry{{Point: "/", Type: "xfs"}, {Point: "/tmp", Type: "ext4"}, {Point: "/tmp", Type: "tmpfs"}, {Point: "/tmp/a", Type: "nfs"}}
	for path, want := range map[string]string{
		"/": "xfs", "/tm": "xfs", "/tmp": "tmpfs", "/tmp/": "tmpfs", "/tmpx": "xfs", "/tmp/b": "tmpfs", "/tmp/a/b": "nfs", "/tmp/a/../b": "tmpfs",
	} {
		if got, _ := mountOf(mounts, path); got.Type != want {
			t.Errorf("%s: got %s, want %s", path, got.Type, want)
		}
	}
}

func TestRootIsRootfs(t *testing.T) {
	for file, want := range map[string]bool{
		"rhel9-job": false, "ubuntu2404": false, "diskless": true, "cray": false, "container": false,
	} {
		h := machine{files: map[string]string{"/proc/self/mountinfo": testFile(t, "mountinfo."+file)}}.host()
		if got := h.rootIsRootfs(); got != want {
			t.Errorf("%s: got %v", file, got)
		}
	}
}

func TestCoversOf(t *testing.T) {
	for file, want := range map[string][2]int{"container": {3, 1}, "rhel9-job": {0, 0}, "debian12-v1-job": {0, 0}} {
		h := machine{files: map[string]string{"/proc/self/mountinfo": testFile(t, "mountinfo."+file)}}.host()
		if got := [2]int{len(h.coversOf("/proc")), len(h.coversOf("/sys"))}; got != want {
			t.Errorf("%s: %v %v", file, h.coversOf("/proc"), h.coversOf("/sys"))
		}
	}
}

func FuzzParseMountinfo(f *testing.F) {
	for _, name := range []string{"rhel9-job", "ubuntu2404", "diskless", "container"} {
		f.Add([]byte(testFile(f, "mountinfo."+name)))
	}
	f.Add([]byte(`1 1 0:1 \ \04 \777 - a \1`))
	f.Fuzz(func(t *testing.T, content []byte) {
		fuzzbound.Watch(t)
		for _, mount := range parseMountinfo(content) {
			mountOf([]mountEntry{mount}, "/a/b")
		}
	})
}
