package cluster

import (
	"fmt"
	"path/filepath"
	"strings"
)

// FolderMount is a folder of the hosts that every pod gets.
type FolderMount struct {
	// Source is the path on every node, Target the path in containers.
	Source, Target string
	ReadOnly       bool
}

// ParseMount parses a value of --mount: SRC[:DST][:ro]. A relative source stays
// relative.
func ParseMount(value string) (FolderMount, error) {
	wrong := func(what string) (FolderMount, error) {
		return FolderMount{}, fmt.Errorf("mount %q: %s: give --mount SRC[:DST][:ro], such as --mount /scratch/alice:/data", value, what)
	}
	var m FolderMount
	rest, readOnly := strings.CutSuffix(value, ":ro")
	if !readOnly {
		rest = strings.TrimSuffix(rest, ":rw")
	}
	var named bool
	m.ReadOnly = readOnly
	if m.Source, m.Target, named = strings.Cut(rest, ":"); m.Source == "" {
		return wrong("no folder")
	}
	m.Source = filepath.Clean(m.Source)
	if !named {
		m.Target = m.Source
		return m, nil
	}
	if !filepath.IsAbs(m.Target) || strings.Contains(m.Target, ":") {
		return wrong(fmt.Sprintf("%q is not an absolute path for containers", m.Target))
	}
	if m.Target = filepath.Clean(m.Target); m.Target == "/" {
		return wrong("a container has its own root")
	}
	return m, nil
}

// mountsOf returns the mounts of the command line, which has been validated.
func mountsOf(spec Spec) []FolderMount {
	var mounts []FolderMount
	for _, value := range spec.Mounts {
		if m, err := ParseMount(value); err == nil {
			mounts = append(mounts, m)
		}
	}
	return mounts
}
