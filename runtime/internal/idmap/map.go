// Package idmap fits the owners of an image's files to the user and group ids that
// this node has.
package idmap

import (
	"fmt"
	"math"
	"os"
	"strings"
)

// Nobody is the owner that files get if a node lacks the id of their owner.
const Nobody = 65534

// Extent is a line of a uid_map or gid_map: Count ids from First on, inside the namespace.
type Extent struct{ First, Count uint32 }

// Map holds the ids of a user namespace. The zero Map contains all ids.
type Map struct{ UIDs, GIDs []Extent }

// Own returns the ids of this process's user namespace. If the namespace has only one user
// or group, Own returns the zero Map, because all files there seem to have the same owner.
func Own() (m Map, err error) {
	if m.UIDs, err = read("/proc/self/uid_map"); err != nil {
		return Map{}, err
	}
	if m.GIDs, err = read("/proc/self/gid_map"); err != nil {
		return Map{}, err
	}
	if size(m.UIDs) <= 1 || size(m.GIDs) <= 1 {
		return Map{}, nil
	}
	return m, nil
}

func read(path string) ([]Extent, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the map of ids: %w", err)
	}
	extents, err := parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("read the map of ids (%s): %w", path, err)
	}
	return extents, nil
}

func parse(text string) (extents []Extent, err error) {
	for line := range strings.Lines(text) {
		var e Extent
		var outside uint32
		if _, err := fmt.Sscan(line, &e.First, &outside, &e.Count); err != nil {
			return nil, err
		}
		extents = append(extents, e)
	}
	return extents, nil
}

func size(extents []Extent) (n uint64) {
	for _, e := range extents {
		n += uint64(e.Count)
	}
	return n
}

func has(extents []Extent, id uint32) bool {
	for _, e := range extents {
		if id >= e.First && id-e.First < e.Count {
			return true
		}
	}
	return len(extents) == 0
}

// fit returns id if it is in the extents, or else Nobody, or else the largest id there.
func fit(extents []Extent, id uint32) uint32 {
	if has(extents, id) {
		return id
	}
	if has(extents, Nobody) {
		return Nobody
	}
	largest := uint32(0)
	for _, e := range extents {
		largest = max(largest, e.First+e.Count-1)
	}
	return largest
}

// Fit returns the owner that a file has on this node.
func (m Map) Fit(uid, gid uint32) (uint32, uint32) { return fit(m.UIDs, uid), fit(m.GIDs, gid) }

// Misfits counts the files that have different owners on this node than in their image.
type Misfits struct {
	Map
	count   int
	example string
}

// Fit maps the IDs of a file, and counts the file if they changed. It returns IDs
// outside the range of any system unchanged, so that the caller can refuse them.
func (m *Misfits) Fit(name string, uid, gid int) (int, int) {
	if uid < 0 || gid < 0 || uid > math.MaxUint32 || gid > math.MaxUint32 {
		return uid, gid
	}
	u, g := m.FitAll(1, name, uint32(uid), uint32(gid))
	return int(u), int(g)
}

// FitAll works like Fit, but for several files with one owner. name is the name of
// one of them.
func (m *Misfits) FitAll(files int, name string, uid, gid uint32) (uint32, uint32) {
	u, g := m.Map.Fit(uid, gid)
	if u != uid || g != gid {
		if m.count == 0 {
			m.example = fmt.Sprintf("%q of %d:%d", name, uid, gid)
		}
		m.count += files
	}
	return u, g
}

// String describes the counted files. It returns "" if there are none.
func (m *Misfits) String() string {
	if m.count == 0 {
		return ""
	}
	files := "files"
	if m.count == 1 {
		files = "file"
	}
	return fmt.Sprintf("an image has %d %s of users or groups that this node does not have, such as %s; in pods such ids are %d", m.count, files, m.example, fit(m.UIDs, math.MaxUint32))
}
