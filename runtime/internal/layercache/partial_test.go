package layercache

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
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

func TestPartialGoesOn(t *testing.T) {
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
		if err != nil || !bytes.Equal(text, []byte("first ")) || p.Before() != 6 || p.End() != 12 {
			t.Errorf("%q of %d, %d bytes, %v", text, p.Before(), p.End(), err)
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

func TestPartialsMakeRoom(t *testing.T) {
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
	c.room = func() (int64, error) { return -1, nil }
	if err := c.MakeRoom(0); err != nil || there(young) {
		t.Errorf("young %t, %v", there(young), err)
	}
	c.room = func() (int64, error) { return 1 << 30, nil }
	// Nobody goes on after a week.
	begun(t, c, old, "a few bytes")
	if err := c.Trim(now.Add(partialFor / 2)); err != nil || !there(old) {
		t.Errorf("%t, %v", there(old), err)
	}
	if err := c.Trim(now.Add(partialFor + time.Hour)); err != nil || there(old) {
		t.Errorf("%t, %v", there(old), err)
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
