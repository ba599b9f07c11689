package layercache

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// begun leaves a part of a blob.
func begun(t *testing.T, c *Cache, blob digest.Digest, content string) {
	t.Helper()
	p, err := c.Partial(blob)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Add([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestPartialIsContinued(t *testing.T) {
	c, _ := open(t, t.TempDir(), "a", 1<<20)
	blob := digest.FromString("blob")
	begun(t, c, blob, "first ")
	one, err := c.Partial(blob)
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.Partial(blob)
	if err != nil {
		t.Fatal(err)
	}
	// Both write the same.
	for _, p := range []*Partial{one, other} {
		if err := p.Add([]byte("second")); err != nil {
			t.Error(err)
		}
		text, err := io.ReadAll(p.Reader())
		if err != nil || !bytes.Equal(text, []byte("first ")) || p.Before() != 6 || p.end != 12 {
			t.Errorf("%q of %d, %d bytes, %v", text, p.Before(), p.end, err)
		}
	}
	content, err := os.ReadFile(one.file.Name())
	if err != nil || string(content) != "first second" {
		t.Errorf("%q, %v", content, err)
	}
	for range 2 {
		if err := one.Remove(); err != nil {
			t.Error(err)
		}
		if err := other.Remove(); err != nil {
			t.Error(err)
		}
		if err := one.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := one.Add([]byte("x")); err == nil {
		t.Error("something was added to what is gone")
	}
	for _, bad := range []digest.Digest{"", "sha256:../../x", digest.NewDigestFromEncoded(digest.SHA512, strings.Repeat("0", 128))} {
		if p, err := c.Partial(bad); err == nil {
			t.Errorf("%q: %v", bad, p)
		}
	}
}

func TestPartialsAreTrimmed(t *testing.T) {
	c, _ := open(t, t.TempDir(), "a", 1<<20)
	old, young := digest.FromString("old"), digest.FromString("young")
	begun(t, c, old, "a few bytes")
	begun(t, c, young, "others")
	now := time.Now()
	there := func(blob digest.Digest) bool {
		files, _, err := c.beginnings()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if f.Name() == blob.Encoded() {
				return true
			}
		}
		return false
	}
	past := now.Add(-time.Hour)
	if err := os.Chtimes(c.partials()+"/"+old.Encoded(), past, past); err != nil {
		t.Fatal(err)
	}
	if usage, err := c.Usage(); err != nil || usage != (Usage{0, 17}) {
		t.Errorf("%+v, %v", usage, err)
	}
	// The limit takes the older one, a full file system the other one.
	if err := c.shrink(10, true); err != nil || there(old) || !there(young) {
		t.Errorf("old %t, young %t, %v", there(old), there(young), err)
	}
	c.space = func() (int64, error) { return -1, nil }
	if err := c.FreeSpace(0); err != nil || there(young) {
		t.Errorf("young %t, %v", there(young), err)
	}
	c.space = func() (int64, error) { return 1 << 30, nil }
	// Nobody goes on after a week.
	begun(t, c, old, "a few bytes")
	if err := c.Trim(now.Add(partialFor / 2)); err != nil || !there(old) {
		t.Errorf("%t, %v", there(old), err)
	}
	if err := c.Trim(now.Add(partialFor + time.Hour)); err != nil || there(old) {
		t.Errorf("%t, %v", there(old), err)
	}
}

// bounded has a cache know how much room there is as quota does, with what has come in
// part.
func bounded(t *testing.T, c *Cache, most int64) {
	quota(t, c, most)
	layers := c.space
	c.space = func() (int64, error) {
		space, err := layers()
		_, begun, err2 := c.beginnings()
		return space - begun, errors.Join(err, err2)
	}
}

// underWay returns a blob with size bytes that somebody is writing.
func underWay(t *testing.T, c *Cache, size int) *Partial {
	t.Helper()
	p, err := c.Partial(digest.FromString("blob"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	if err := p.Add(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	return p
}

// A layer that is ready goes before what has come of others, whose room is free at
// once although somebody adds to them.
func TestLayersAreTrimmedBeforePartials(t *testing.T) {
	c, _ := open(t, t.TempDir(), "a", 1<<30)
	d, path := image(t, "content")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	p := underWay(t, c, 5000)
	bounded(t, c, info.Size()+1000)
	if own, err := c.Make(d, func(to string) error { return copyImage(path, to) }); err != nil || own == "" {
		t.Errorf("made as %q, %v", own, err)
	}
	if left, err := p.file.Stat(); err != nil || left.Size() > 0 {
		t.Errorf("it has %d bytes, %v", left.Size(), err)
	}
	if err := p.Add([]byte("more")); err != nil {
		t.Error(err)
	}
}

// Where all of it would not be enough nothing goes.
func TestPartialsAreNotTrimmedNeedlessly(t *testing.T) {
	c, _ := open(t, t.TempDir(), "a", 1<<30)
	d, path := image(t, "content")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	underWay(t, c, 5000)
	bounded(t, c, info.Size()-1)
	if _, err := c.Make(d, func(to string) error { return copyImage(path, to) }); !errors.Is(err, errNoSpace) {
		t.Errorf("made beyond the quota: %v", err)
	}
	if _, err := c.Publish(d, path); !errors.Is(err, errNoSpace) {
		t.Errorf("published beyond the quota: %v", err)
	}
	if err := c.shrink(-1, false); !errors.Is(err, errNoSpace) {
		t.Errorf("below nothing: %v", err)
	}
	if _, begun, err := c.beginnings(); err != nil || begun != 5000 {
		t.Errorf("%d bytes are left, %v", begun, err)
	}
}

// On NFS what somebody has open cannot be removed, and has a name of NFS'.
func TestPartialsThatStay(t *testing.T) {
	c, _ := open(t, t.TempDir(), "a", 1<<20)
	held := filepath.Join(c.partials(), ".nfs000000000001")
	if err := os.WriteFile(held, make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	stay := filepath.Join(c.partials(), digest.FromString("blob").Encoded())
	if err := os.WriteFile(stay, make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(stay, stay, "", unix.MS_BIND, ""); err != nil {
		t.Log("mounts are not allowed here: ", err)
	} else {
		defer func() {
			if err := unix.Unmount(stay, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}()
		if freed, err := c.dropBeginnings(1); freed != 0 || err != nil {
			t.Errorf("freed %d, %v", freed, err)
		}
	}
	c.limit = 100
	c.space = func() (int64, error) { return -1, nil }
	if err := c.Trim(time.Now()); err != nil {
		t.Error(err)
	}
	if err := c.Trim(time.Now().Add(partialFor / 2)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(held); err != nil {
		t.Error(err)
	}
}

// One that others may change is not used.
func TestPartialOfOthers(t *testing.T) {
	c, _ := open(t, t.TempDir(), "a", 1<<20)
	blob := digest.FromString("blob")
	begun(t, c, blob, "text")
	if err := os.Chmod(c.partials()+"/"+blob.Encoded(), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Partial(blob); err == nil {
		t.Error("it was used")
	}
}
