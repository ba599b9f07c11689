package layercache

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"berth.dev/berth/runtime/internal/erofs"
)

// image writes an image with some content, and makes up a layer's digest.
func image(t *testing.T, content string) (d digest.Digest, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "image")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := erofs.NewWriter(file)
	n, err := w.File(erofs.Meta{Mode: erofs.TypeRegular}, strings.NewReader(content), int64(len(content)))
	if err == nil {
		err = w.Link(w.Root(), "file", n)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return digest.FromString(content), path
}

func open(t *testing.T, dir, job string, limit int64) (*Cache, *[]string) {
	t.Helper()
	var said []string
	c, err := Open(dir, job, limit, func(text string) { said = append(said, text) })
	if err != nil {
		t.Fatal(err)
	}
	return c, &said
}

func take(t *testing.T, c *Cache, d digest.Digest) string {
	t.Helper()
	path, err := c.Take(d)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// parts returns the unfinished files in the cache.
func parts(t *testing.T, c *Cache) (all []string) {
	t.Helper()
	for _, pattern := range []string{filepath.Join(c.unfinished(), "*"), filepath.Join(filepath.Dir(c.job), "*", "*"+partExtension)} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// Unfinished files of a killed job are removed with the job's folder, by other
// jobs, or when they are old.
func TestKilledJobFiles(t *testing.T) {
	dir := t.TempDir()
	killed, _ := open(t, dir, "killed", 1<<30)
	lost, _ := open(t, dir, "lost", 1<<30)
	now := time.Now()
	for _, c := range []*Cache{killed, lost} {
		d := digest.FromString("layer")
		_, err := c.Make(d, func(path string) error {
			// As if the process ended here: what is there is all that there will be.
			if err := os.WriteFile(path, make([]byte, 9000), 0o400); err != nil {
				return err
			}
			return os.Link(path, filepath.Join(filepath.Dir(path), "left"+partExtension))
		})
		if err == nil {
			t.Fatal("half an image is one")
		}
	}
	if left := parts(t, killed); len(left) != 2 {
		t.Fatalf("%v are there, not one for each job", left)
	}
	if err := killed.Close(); err != nil { // as the janitor does
		t.Fatal(err)
	}
	other, _ := open(t, dir, "other", 1<<30)
	for _, c := range []struct {
		at   time.Time
		want int
	}{{now, 1}, {now.Add(unfinishedFor + time.Minute), 0}} {
		if err := other.Trim(c.at); err != nil {
			t.Fatal(err)
		}
		if left := parts(t, other); len(left) != c.want {
			t.Errorf("%v: %v are there", c.at, left)
		}
	}
}

func TestPublishAndTake(t *testing.T) {
	dir := t.TempDir()
	one, _ := open(t, dir, "one", 1<<30)
	other, said := open(t, dir, "other", 1<<30)
	d, path := image(t, "content")
	if got := take(t, other, d); got != "" {
		t.Fatalf("%s is there before it was published", got)
	}
	if _, err := one.Publish(d, path); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(take(t, other, d))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("took something else: %v", err)
	}
	// Once more is the same.
	if _, err := other.Publish(d, path); err != nil {
		t.Fatal(err)
	}
	take(t, other, d)
	if left := parts(t, one); len(left)+len(*said) > 0 {
		t.Errorf("left %v, said %v", left, *said)
	}
}

func TestManyPublishTheSame(t *testing.T) {
	dir := t.TempDir()
	d, path := image(t, strings.Repeat("content", 100000))
	var group sync.WaitGroup
	for i := range 20 {
		c, _ := open(t, dir, fmt.Sprint("job", i), 1<<30)
		group.Go(func() {
			own, err := c.Publish(d, path)
			if err == nil && own != "" { // else another one is about to
				err = check(own)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	c, _ := open(t, dir, "last", 1<<30)
	layers, err := os.ReadDir(c.layers())
	if err != nil || len(layers) != 1 {
		t.Errorf("%v, %v", layers, err)
	}
	if own := take(t, c, d); own == "" {
		t.Error("it is not to be had")
	}
	if left, err := os.ReadDir(c.claims()); err != nil || len(left) > 0 {
		t.Errorf("%v stay claimed, %v", left, err)
	}
}

func TestDamagedFileIsSetAside(t *testing.T) {
	for what, damage := range map[string]func(path string) error{
		"cut":       func(path string) error { return os.Truncate(path, 5000) },
		"empty":     func(path string) error { return os.Truncate(path, 0) },
		"others'":   func(path string) error { return os.Chmod(path, 0o666) },
		"no image":  func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("text"), 9000), 0o600) },
		"its inode": func(path string) error { return change(path, 1024+128+1) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			c, said := open(t, dir, "one", 1<<30)
			d, path := image(t, "content")
			if _, err := c.Publish(d, path); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(c.path(d), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := damage(c.path(d)); err != nil {
				t.Fatal(err)
			}
			if got := take(t, c, d); got != "" {
				t.Errorf("%s is taken", got)
			}
			aside, err := os.ReadDir(c.aside())
			if err != nil || len(aside) != 1 || len(*said) != 1 {
				t.Errorf("aside %v, said %v, %v", aside, *said, err)
			}
			// Somebody publishes it again.
			if own, err := c.Publish(d, path); err != nil || check(own) != nil {
				t.Error(err)
			}
		})
	}
}

func change(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte{0xff}, at)
	return err
}

func TestDamageFoundWhileReading(t *testing.T) {
	dir := t.TempDir()
	c, _ := open(t, dir, "one", 1<<30)
	other, _ := open(t, dir, "other", 1<<30)
	d, path := image(t, "content")
	own, err := c.Publish(d, path)
	if err != nil {
		t.Fatal(err)
	}
	used := take(t, other, d)
	// As a snapshot has it.
	link := filepath.Join(t.TempDir(), "layer.erofs")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	if err := PutAside(link); err != nil {
		t.Fatal(err)
	}
	if got := take(t, c, d); got != "" {
		t.Errorf("%s is still there", got)
	}
	for _, path := range []string{used, link} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("who used it has lost it: %v", err)
		}
	}
	// The job gets the one that somebody publishes next.
	if _, err := other.Publish(d, path); err != nil {
		t.Fatal(err)
	}
	if got := take(t, c, d); got != own || !same(own, c.path(d)) {
		t.Errorf("%q is taken, and is the same: %t", got, same(own, c.path(d)))
	}
	// A file that is not a layer of a cache stays.
	if err := PutAside(path); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestTrim(t *testing.T) {
	dir := t.TempDir()
	_, sample := image(t, strings.Repeat("0", 9000))
	info, err := os.Stat(sample)
	if err != nil {
		t.Fatal(err)
	}
	limit := info.Size() * 5 / 2 // two, and half of one
	earlier, _ := open(t, dir, "earlier", 1<<30)
	c, _ := open(t, dir, "one", limit)
	now := time.Now()
	var all []digest.Digest
	var used string
	for i := range 5 {
		d, path := image(t, strings.Repeat(fmt.Sprint(i), 9000))
		if _, err := earlier.Publish(d, path); err != nil {
			t.Fatal(err)
		}
		at := now.Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(c.path(d), at, at); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			used = take(t, c, d)
			if err := os.Chtimes(used, at, at); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, d)
	}
	if err := earlier.Close(); err != nil { // as the janitor does
		t.Fatal(err)
	}
	old := now.Add(-30 * 24 * time.Hour)
	for _, path := range []string{filepath.Join(c.unfinished(), "left"), filepath.Join(filepath.Dir(c.job), "gone")} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Trim(now); err != nil {
		t.Fatal(err)
	}
	other, _ := open(t, dir, "other", limit)
	for i, d := range all {
		// Layers in use count, and to remove them would free nothing.
		if got, want := take(t, other, d) != "", i == 0 || i == 4; got != want {
			t.Errorf("layer %d is there: %v", i, got)
		}
	}
	if check(used) != nil {
		t.Error("a layer in use was removed")
	}
	for _, dir := range []string{c.unfinished(), filepath.Dir(c.job)} {
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			if e.Name() == "left" || e.Name() == "gone" {
				t.Errorf("%s is still there, %v", e.Name(), err)
			}
		}
	}
}

func TestRefusesForeignFolders(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, "one", 1<<30)
	if err := os.Chmod(filepath.Join(dir, version), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "other", 1<<30, nil); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("a folder that everybody may write to: %v", err)
	}
	// Nothing is left in what is not trusted.
	dir = t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, version), 0o700), os.Chmod(filepath.Join(dir, version), 0o777)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"chmod go-w", "another user's"} {
		if _, err := Open(dir, "other", 1<<30, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if left, err := os.ReadDir(filepath.Join(dir, version)); len(left) > 0 || err != nil {
			t.Errorf("%v, left %q", err, left)
		}
		if err := os.Chown(filepath.Join(dir, version), 1, 1); err != nil {
			break // needs root
		}
	}
}

func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	mountSmall(t, dir)
	c, _ := open(t, dir, "one", 1<<30)
	d, path := image(t, strings.Repeat("content", 500_000))
	if own, err := c.Publish(d, path); err == nil {
		t.Errorf("published as %s on a full disk", own)
	}
	if left := parts(t, c); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if got := take(t, c, d); got != "" {
		t.Errorf("%s is there", got)
	}
}
