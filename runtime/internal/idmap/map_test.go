package idmap

import (
	"slices"
	"testing"
)

func TestFit(t *testing.T) {
	usual := []Extent{{0, 1}, {1, 65536}}
	for _, c := range []struct {
		extents  []Extent
		id, want uint32
	}{
		{nil, 1_000_650_000, 1_000_650_000},
		{usual, 0, 0},
		{usual, 65536, 65536},
		{usual, 65537, Nobody},
		{usual, 1<<32 - 1, Nobody},
		{[]Extent{{0, 1000}}, 1000, 999},
		{[]Extent{{0, 65536}, {1_000_650_000, 1}}, 1_000_650_000, 1_000_650_000},
		{[]Extent{{0, 1<<32 - 1}}, 1_000_650_000, 1_000_650_000},
	} {
		if got := fit(c.extents, c.id); got != c.want {
			t.Errorf("%d in %v is %d, want %d", c.id, c.extents, got, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	got, err := parse("         0       1000          1\n         1     100000      65536\n")
	if want := []Extent{{0, 1}, {1, 65536}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parse("nonsense\n"); err == nil {
		t.Error("nonsense is a map")
	}
	if own, err := Own(); err != nil || !has(own.UIDs, 0) {
		t.Errorf("%+v, %v", own, err)
	}
}

func TestMisfits(t *testing.T) {
	m := Misfits{Map: Map{[]Extent{{0, 65536}}, []Extent{{0, 65536}}}}
	if uid, gid := m.Fit("fits", 7, 8); uid != 7 || gid != 8 || m.String() != "" {
		t.Errorf("%d:%d, %q", uid, gid, m.String())
	}
	for _, name := range []string{"app/first", "app/second"} {
		if uid, gid := m.Fit(name, 1_000_650_000, 5); uid != Nobody || gid != 5 {
			t.Errorf("%d:%d", uid, gid)
		}
	}
	m.Fit("impossible", -1, 0)
	want := `an image has 2 files of users or groups that this node does not have, such as "app/first" of 1000650000:5; in pods such ids are 65534`
	if m.String() != want {
		t.Error(m.String())
	}
}
