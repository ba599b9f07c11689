package layercache

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLimitIsFourFifthsOfQuota(t *testing.T) {
	const nfs, ext4 = 0x6969, 0xef53
	for _, c := range []struct {
		name              string
		kind              int64
		blocks, free, own uint64 // of 1 MiB
		want              int64
	}{
		{"half full", nfs, 1000, 500, 500, 300 << 20},
		{"four fifths", nfs, 1000, 200, 200, 0},
		{"nearly full", nfs, 1000, 50, 50, -150 << 20},
		{"some kept for root", nfs, 1000, 550, 500, (500 - 190) << 20},
		{"a whole site's", nfs, 4 << 30, 2 << 20, 2 << 20, 1 << 40},
		{"one whose number nobody knows", 0x1234567, 1000, 500, 500, 300 << 20},
		{"9p", 0x01021997, 1000, 500, 500, 300 << 20},
		{"a local disk tells no quota", ext4, 1000, 50, 50, math.MaxInt64},
	} {
		st := unix.Statfs_t{Type: c.kind, Bsize: 4096, Frsize: 1 << 20, Blocks: c.blocks, Bfree: c.free, Bavail: c.own}
		if got := spaceOf(&st); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	if _, err := spaceIn("/no/such/folder"); err == nil {
		t.Error("no error of a folder that is not there")
	}
}

// quota has a cache know how much room there is: what is gone from it is free.
func quota(t *testing.T, c *Cache, most int64) {
	c.space = func() (int64, error) {
		_, total, err := c.files()
		for _, part := range parts(t, c) {
			info, err := os.Stat(part)
			if err != nil {
				t.Error(err)
				continue
			}
			total += info.Size()
		}
		return most - total, err
	}
}

func TestQuotaIsRespected(t *testing.T) {
	dir := t.TempDir()
	earlier, _ := open(t, dir, "earlier", 1<<30)
	first, path := image(t, strings.Repeat("first", 2000))
	if _, err := earlier.Publish(first, path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	kept := name(t, earlier, "reg.test/kept:1", strings.Repeat("kept", 2500))
	if err := earlier.Close(); err != nil { // nothing is in use
		t.Fatal(err)
	}

	c, _ := open(t, dir, "one", 1<<30)
	quota(t, c, 5*info.Size()/2) // two, and half of one
	second, path := image(t, strings.Repeat("other", 2000))
	if own, err := c.Publish(second, path); err != nil || own == "" {
		t.Fatalf("the oldest does not go for the new one: %v", err)
	}
	if take(t, c, first) != "" {
		t.Error("the oldest is still there")
	}
	// Removing layers in use frees nothing, and layers of named images were
	// pulled on purpose.
	third, path := image(t, strings.Repeat("third", 2000))
	if own, err := c.Publish(third, path); !errors.Is(err, errNoSpace) || !NoSpace(err) {
		t.Errorf("published as %q, %v", own, err)
	}
	if _, err := os.Stat(c.path(second)); err != nil {
		t.Errorf("a layer in use went in vain: %v", err)
	}
	if _, missing := c.Size(kept); missing > 0 {
		t.Error("a layer of an image with a name went")
	}
	// As much as others write meanwhile.
	quota(t, c, 1)
	if _, err := c.Make(third, func(to string) error { return copyImage(path, to) }); !errors.Is(err, errNoSpace) {
		t.Errorf("made beyond the quota: %v", err)
	}
	if left := parts(t, c); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// Where others have written so much that nothing would be enough, what nobody needs
// goes all the same.
func TestTrimFreesAsMuchAsPossible(t *testing.T) {
	c, _ := open(t, t.TempDir(), "one", 1<<30)
	kept := name(t, c, "reg.test/kept:1", "kept")
	nameless, path := image(t, "nameless")
	if _, err := c.Publish(nameless, path); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil { // nothing is in use
		t.Fatal(err)
	}
	quota(t, c, 1)
	if err := c.Trim(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.path(nameless)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a layer without a name is there: %v", err)
	}
	if _, missing := c.Size(kept); missing > 0 {
		t.Error("a layer of an image with a name went")
	}
}

// Layers that jobs use cannot be removed, so there is no room for more.
func TestLimitInUse(t *testing.T) {
	dir := t.TempDir()
	c, _ := open(t, dir, "one", 1<<30)
	first, path := image(t, "first")
	own, err := c.Publish(first, path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(own)
	if err != nil {
		t.Fatal(err)
	}
	c.limit = info.Size() * 3 / 2
	second, path := image(t, "other")
	if own, err := c.Publish(second, path); !errors.Is(err, errNoSpace) {
		t.Errorf("published as %q, %v", own, err)
	}
	if other, _ := open(t, dir, "other", 1<<30); take(t, other, first) == "" {
		t.Error("a layer in use lost its name")
	}
}

func TestLayersLargerThanLimit(t *testing.T) {
	dir := t.TempDir()
	c, _ := open(t, dir, "one", 1<<30)
	small, path := image(t, "small")
	if _, err := c.Publish(small, path); err != nil {
		t.Fatal(err)
	}
	large, path := image(t, strings.Repeat("large", 20_000))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	c.limit = info.Size() - 1
	if own, err := c.Publish(large, path); !errors.Is(err, errNoSpace) {
		t.Errorf("published as %q, %v", own, err)
	}
	if take(t, c, small) == "" {
		t.Error("another one went for it in vain")
	}
}
