package freespace

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestReserve(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for _, c := range []struct {
		now           space
		bytes, inodes uint64
	}{
		{space{100 * mib, 100 * gib, 1000, 1_000_000}, 25 * mib, 250}, // nearly full
		{space{2 * gib, 2 * gib, 800, 1000}, 512 * mib, 50},           // small
		{space{50 * gib, 100 * gib, 0, 0}, 5 * gib, 0},                // usual, without a limit of inodes
		{space{900 * gib, 1000 * gib, 1000, 1_000_000}, 8 * gib, 250}, // large
	} {
		if bytes, inodes := c.now.reserve(); bytes != c.bytes || inodes != c.inodes {
			t.Errorf("%+v keeps %d bytes and %d inodes free, want %d and %d", c.now, bytes, inodes, c.bytes, c.inodes)
		}
	}
}

// disk is a file system that fills with every read or write through a guard.
type disk struct{ space }

func (d *disk) look(string) (space, error) { return d.space, nil }

func TestGuardKeepsSpaceFree(t *testing.T) {
	d := &disk{space{4 << 30, 8 << 30, 1 << 20, 1 << 20}}
	g, err := watch("/state", d.look)
	if err != nil {
		t.Fatal(err)
	}
	begin := d.free
	take := func(p []byte) (int, error) {
		d.free -= uint64(len(p))
		return len(p), nil
	}
	_, err = io.Copy(writerFunc(take), g.Reader(zeros{}))
	if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "/state keeps 512 MB free") {
		t.Errorf("what has no end: %v", err)
	}
	if d.free+2*interval < 512<<20 || d.free == begin {
		t.Errorf("%d bytes are left", d.free)
	}
	if _, err := io.ReadFull(g.Reader(zeros{}), make([]byte, 1)); !errors.Is(err, ErrNoSpace) {
		t.Errorf("a byte after that: %v", err)
	}
	d.free = begin
	if g, err = watch("/state", d.look); err != nil {
		t.Fatal(err)
	}
	d.freeInodes = 1 << 10
	_, err = g.Writer(io.Discard).Write(make([]byte, interval))
	if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "inodes") {
		t.Errorf("what takes all inodes: %v", err)
	}
	if _, err := watch("/state", func(string) (space, error) { return space{}, io.ErrUnexpectedEOF }); err == nil {
		t.Error("a directory that cannot be looked at is watched")
	}
	if g, err = Watch(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, g.Reader(bytes.NewReader(make([]byte, 3*interval)))); err != nil {
		t.Errorf("%d bytes that nobody writes: %v", 3*interval, err)
	}
}

func TestRoom(t *testing.T) {
	d := &disk{space{4 << 30, 8 << 30, 0, 1 << 20}}
	g, err := watch("/state", d.look)
	if err != nil {
		t.Fatal(err)
	}
	const room = 4<<30 - 512<<20
	if err := g.Room(room); err != nil {
		t.Error(err)
	}
	if err := g.Room(room + 1); !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "/state keeps 512 MB free") {
		t.Errorf("a byte more: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
