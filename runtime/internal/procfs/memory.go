package procfs

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory is the memory of a process, in bytes, in the kernel's classes.
type Memory struct {
	Anon, Shmem, File uint64
	// PageTables is the memory of the page tables for the rest.
	PageTables uint64
}

// Charged returns the bytes that a memory cgroup could not reclaim. The kernel can drop file
// pages, but no others.
func (m Memory) Charged() uint64 { return m.Anon + m.Shmem + m.PageTables }

func (m Memory) plus(o Memory) Memory {
	return Memory{m.Anon + o.Anon, m.Shmem + o.Shmem, m.File + o.File, m.PageTables + o.PageTables}
}

// WithFiles returns m for a container that has written files bytes into volumes in memory.
// Mapped bytes of these files are part of Shmem already.
func (m Memory) WithFiles(files uint64) Memory {
	m.Shmem = max(m.Shmem, files)
	return m
}

// Memory reads the classes of one process. Pages shared with other processes
// count in full.
func (f FS) Memory(pid int) (Memory, error) {
	var m Memory
	err := f.kilobytes(pid, "status", map[string]*uint64{
		"RssAnon": &m.Anon, "RssShmem": &m.Shmem, "RssFile": &m.File, "VmPTE": &m.PageTables,
	})
	return m, err
}

// Proportional works like Memory, but pages shared by n processes count 1/n to
// each. The kernel walks every page table for this, which takes milliseconds per gigabyte.
// Memory takes microseconds.
func (f FS) Proportional(pid int) (Memory, error) {
	var m Memory
	err := f.kilobytes(pid, "smaps_rollup", map[string]*uint64{
		"Pss_Anon": &m.Anon, "Pss_Shmem": &m.Shmem, "Pss_File": &m.File,
	})
	if err != nil {
		return m, err
	}
	err = f.kilobytes(pid, "status", map[string]*uint64{"VmPTE": &m.PageTables})
	return m, err
}

// kilobytes reads the lines "Name:  123 kB" of a file.
func (f FS) kilobytes(pid int, name string, want map[string]*uint64) error {
	text, err := os.ReadFile(f.path(pid, name))
	if err != nil {
		return fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		key, rest, ok := strings.Cut(line, ":")
		target := want[key]
		if !ok || target == nil {
			continue
		}
		number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		v, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return fmt.Errorf("parse %s of process %d: %w", key, pid, err)
		}
		*target = v * 1024
	}
	return nil
}
