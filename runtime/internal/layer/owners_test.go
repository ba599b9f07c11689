package layer

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/fuzzbound"
)

// ownersOf returns the list in the file of a layer, which has to be a good one.
func ownersOf(t *testing.T, headers ...tar.Header) []Owner {
	t.Helper()
	path := filepath.Join(t.TempDir(), "layer")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := Lay(file, budget.Budget{}.Layer(0), func(put func(*tar.Header) (int64, error)) error {
		for _, h := range headers {
			if _, err := put(&h); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := erofs.Open(file, info.Size()); err != nil {
		t.Fatal(err)
	}
	all, err := Owners(file)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestOwnersAreListed(t *testing.T) {
	got := ownersOf(t,
		tar.Header{Name: "system", Typeflag: tar.TypeReg, Uid: 0, Gid: 999},
		tar.Header{Name: "app/", Typeflag: tar.TypeDir, Uid: 1_000_650_000, Gid: 0},
		tar.Header{Name: "app/\"a\"\né", Typeflag: tar.TypeReg, Uid: 1_000_650_000, Gid: 0},
		tar.Header{Name: "group", Typeflag: tar.TypeReg, Uid: 7, Gid: 4_000_000_000},
		tar.Header{Name: "user", Typeflag: tar.TypeReg, Uid: 1000, Gid: 1000},
		// The root is described late, and keeps the list.
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "odd\n\x01é", Typeflag: tar.TypeReg, Uid: 1000, Gid: 1001},
	)
	want := []Owner{{7, 4_000_000_000, 1, "group"}, {1_000_650_000, 0, 2, "app/"}, {1000, 1001, 1, "odd\n\x01é"}, {1000, 1000, 1, "user"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := ownersOf(t, tar.Header{Name: "system", Typeflag: tar.TypeReg, Gid: 999}); len(got) != 0 {
		t.Errorf("ids of every system: %+v", got)
	}
}

// Owners that do not fit are omitted, the lowest ids first.
func TestManyOwnersAreBounded(t *testing.T) {
	var headers []tar.Header
	for i := range 1000 {
		headers = append(headers, tar.Header{Name: fmt.Sprintf("%s%d", strings.Repeat("é", 100), i), Typeflag: tar.TypeReg, Uid: 100_000 + i})
	}
	got := ownersOf(t, headers...)
	if len(got) < 5 || len(got) > 100 || got[0].UID != 100_999 || got[len(got)-1].UID != uint32(101_000-len(got)) {
		t.Errorf("%d owners, from %+v", len(got), got[:min(len(got), 1)])
	}
}

func FuzzOwners(f *testing.F) {
	f.Add([]byte("1000 1000 1 \"a\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzbound.Watch(t)
		if len(text) > maxList {
			return
		}
		file, err := os.Create(filepath.Join(t.TempDir(), "layer"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		w := erofs.NewWriter(file)
		if err := w.Describe(w.Root(), erofs.Meta{Mode: erofs.TypeDir, Xattrs: []erofs.Xattr{{Name: ownersXattr, Value: text}}}); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		_, _ = Owners(file)
	})
}
