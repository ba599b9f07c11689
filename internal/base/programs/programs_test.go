package programs

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func TestList(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "cni"), 0o700); err != nil {
		t.Fatal(err)
	}
	// A Go program, a link to it, and a file that is none.
	if err := os.Symlink("cni/bridge", filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(self, filepath.Join(dir, "cni", "bridge")); err != nil {
		content, err := os.ReadFile(self)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cni", "bridge"), content, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}

	got, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 {
		t.Fatalf("got %v, want three programs", got)
	}
	if want := (Program{Name: "a"}); got[0] != want {
		t.Errorf("a script: got %+v, want %+v", got[0], want)
	}
	for i, name := range []string{"b", "cni/bridge"} {
		if p := got[i+1]; p.Name != name || p.Component != "berth.dev/berth" || "go"+p.Go != strings.Fields(runtime.Version())[0] {
			t.Errorf("this test as a program: got %+v", p)
		}
	}
}

func TestListEmpty(t *testing.T) {
	if _, err := List(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a directory that is not there: no error")
	}
}

// note builds what a linker would.
func note(owner string, kind uint32, text string) []byte {
	order := binary.LittleEndian
	content := order.AppendUint32(nil, uint32(len(owner)))
	content = order.AppendUint32(content, uint32(len(text)))
	content = order.AppendUint32(content, kind)
	return append(append(content, owner...), text...)
}

func TestPackageNote(t *testing.T) {
	text := `{"type":"deb","os":"debian","name":"nftables","version":"1.1.3-1"}` + "\x00"
	for _, test := range []struct {
		name    string
		content []byte
		want    packageNote
		failure string
	}{
		{"as the linker writes it", note("FDO\x00", packageNoteType, text), packageNote{"nftables", "1.1.3-1"}, ""},
		{"with padding", append(note("FDO\x00", packageNoteType, text), 0, 0), packageNote{"nftables", "1.1.3-1"}, ""},
		{"of somebody else", note("GNU\x00", packageNoteType, text), packageNote{}, "not about a package"},
		{"of another kind", note("FDO\x00", 3, text), packageNote{}, "not about a package"},
		{"cut off", note("FDO\x00", packageNoteType, text)[:40], packageNote{}, "not about a package"},
		{"empty", nil, packageNote{}, "too short"},
		{"without JSON", note("FDO\x00", packageNoteType, "nftables"), packageNote{}, "parse note"},
	} {
		got, err := parsePackageNote(test.content, binary.LittleEndian)
		if got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
		if (err != nil || test.failure != "") && (err == nil || test.failure == "" || !strings.Contains(err.Error(), test.failure)) {
			t.Errorf("%s: got error %v, want %q", test.name, err, test.failure)
		}
	}
}

func FuzzPackageNote(f *testing.F) {
	f.Add(note("FDO\x00", packageNoteType, "{}"))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, 126, 26, 254, 202, 70, 68, 79, 0})
	f.Fuzz(func(t *testing.T, content []byte) {
		fuzzbound.Watch(t)
		// Reading ends without a panic, whatever the note holds.
		_, _ = parsePackageNote(content, binary.BigEndian)
		_, _ = parsePackageNote(content, binary.LittleEndian)
	})
}
