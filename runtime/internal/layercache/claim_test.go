package layercache

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A job that finds another one copying a layer neither copies it nor waits.
func TestOneOfManyCopiesIsUsed(t *testing.T) {
	dir := t.TempDir()
	one, _ := open(t, dir, "one", 1<<30)
	other, _ := open(t, dir, "other", 1<<30)
	d, path := image(t, "content")
	giveUp, err := one.claim(d)
	if err != nil || giveUp == nil {
		t.Fatalf("nobody has it, but it is not to be had: %v", err)
	}
	if own, err := other.Publish(d, path); err != nil || own != "" {
		t.Errorf("copied beside another job, as %q, %v", own, err)
	}
	second, path2 := image(t, "second")
	if own, err := other.Publish(second, path2); err != nil || own == "" {
		t.Errorf("another layer waits: %q, %v", own, err)
	}
	giveUp()
	if own, err := other.Publish(d, path); err != nil || own == "" {
		t.Errorf("what was given up is not copied: %q, %v", own, err)
	}
	for _, dir := range []string{one.claims(), one.job} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
	}
}

// A job that was killed holds up nobody: its folder is removed, or it shows no sign
// of life.
func TestClaimsOfJobsThatAreGone(t *testing.T) {
	for name, end := range map[string]func(c *Cache, claim string) error{
		"its folder was removed": func(c *Cache, _ string) error { return c.Close() },
		"it is silent": func(_ *Cache, claim string) error {
			old := time.Now().Add(-claimGoneAfter - time.Minute)
			return os.Chtimes(claim, old, old)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			gone, _ := open(t, dir, "gone", 1<<30)
			other, _ := open(t, dir, "other", 1<<30)
			d, path := image(t, "content")
			giveUp, err := gone.claim(d)
			if err != nil {
				t.Fatal(err)
			}
			if err := end(gone, filepath.Join(gone.claims(), d.Encoded())); err != nil {
				t.Fatal(err)
			}
			if own, err := other.Publish(d, path); err != nil || own == "" {
				t.Errorf("nobody copies it: %q, %v", own, err)
			}
			giveUp() // it was only slow
			if left, err := os.ReadDir(other.claims()); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}

// A claim that another job has taken over is not given up.
func TestClaimTakenOver(t *testing.T) {
	dir := t.TempDir()
	slow, _ := open(t, dir, "slow", 1<<30)
	next, _ := open(t, dir, "next", 1<<30)
	third, _ := open(t, dir, "third", 1<<30)
	d, path := image(t, "content")
	giveUp, err := slow.claim(d)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-claimGoneAfter - time.Minute)
	if err := os.Chtimes(filepath.Join(slow.claims(), d.Encoded()), old, old); err != nil {
		t.Fatal(err)
	}
	done, err := next.claim(d)
	if err != nil || done == nil {
		t.Fatalf("not taken over: %v", err)
	}
	defer done()
	giveUp()
	if own, err := third.Publish(d, path); err != nil || own != "" {
		t.Errorf("copied beside another job, as %q, %v", own, err)
	}
}
