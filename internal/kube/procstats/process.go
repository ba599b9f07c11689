package procstats

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"berth.dev/berth/internal/base/linux"
)

// process holds the result of one pass over /proc for one process.
type process struct {
	linux.Stat
	shared uint64 // bytes of Resident that are file or shmem pages
	pidNS  string
}

// anonymous returns the part of Resident that no file backs.
func (p process) anonymous() uint64 { return p.Resident - min(p.shared, p.Resident) }

// parseStatm reads resident and shared memory, in bytes.
func parseStatm(line []byte, pageSize uint64) (resident, shared uint64, err error) {
	f := bytes.Fields(line)
	if len(f) < 3 {
		return 0, 0, fmt.Errorf("parse statm %q: %d fields", line, len(f))
	}
	r, err1 := strconv.ParseUint(string(f[1]), 10, 64)
	s, err2 := strconv.ParseUint(string(f[2]), 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, fmt.Errorf("parse statm: %w", err)
	}
	return r * pageSize, s * pageSize, nil
}

// table reads the processes below root, which is /proc but in tests. It keeps
// what cannot change: the PID namespace of a process.
type table struct {
	root     string
	pageSize uint64
	names    map[int]nsEntry
}

type nsEntry struct {
	start uint64
	pidNS string
}

func newTable(root string) *table {
	return &table{root: root, pageSize: uint64(os.Getpagesize()), names: map[int]nsEntry{}}
}

// read makes one pass. Processes that end meanwhile are left out.
func (t *table) read() (map[int]process, error) {
	dir, err := os.Open(t.root)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	processes := make(map[int]process, len(names))
	seen := make(map[int]nsEntry, len(names))
	buf := make([]byte, 4096)
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		p, err := t.process(name, buf)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		processes[p.PID] = p
		seen[p.PID] = nsEntry{p.Start, p.pidNS}
	}
	t.names = seen
	return processes, nil
}

var errGone = errors.New("process is gone")

func (t *table) process(name string, buf []byte) (process, error) {
	stat, err := readSmall(filepath.Join(t.root, name, "stat"), buf)
	if err != nil {
		return process{}, err
	}
	var p process
	if p.Stat, err = linux.ParseStat(stat); err != nil {
		return process{}, err
	}
	statm, err := readSmall(filepath.Join(t.root, name, "statm"), buf)
	if err != nil {
		return process{}, err
	}
	if p.Resident, p.shared, err = parseStatm(statm, t.pageSize); err != nil {
		return process{}, err
	}
	if known, ok := t.names[p.PID]; ok && known.start == p.Start && known.pidNS != "" {
		p.pidNS = known.pidNS
	} else if ns, err := os.Readlink(filepath.Join(t.root, name, "ns", "pid")); err == nil {
		p.pidNS = ns // a zombie has none; its ancestors show where it belongs
	}
	return p, nil
}

// pss reads the proportional set size of a process, in bytes. The kernel walks
// all its pages for it, so it is for small processes.
func (t *table) pss(pid int) (uint64, error) {
	return linux.Kilobytes(filepath.Join(t.root, strconv.Itoa(pid), "smaps_rollup"), "Pss:")
}

// readSmall reads a file of /proc with one read into buf.
func readSmall(path string, buf []byte) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n, err := f.Read(buf)
	if n == 0 || err != nil {
		return nil, errGone // ESRCH, or an empty file
	}
	return buf[:n], nil
}
