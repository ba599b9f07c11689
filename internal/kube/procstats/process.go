package procstats

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// clockTick is USER_HZ, the unit of CPU times in /proc. The kernel reports
// 100 per second to user space on every architecture that Go runs on.
const clockTick = time.Second / 100

// process holds the result of one pass over /proc for one process.
type process struct {
	pid, parent int
	start       uint64 // ticks since boot; distinguishes a reused pid
	cpu         time.Duration
	resident    uint64 // bytes
	shared      uint64 // bytes of resident that are file or shmem pages
	pidNS       string
}

// anonymous returns the part of resident that no file backs.
func (p process) anonymous() uint64 { return p.resident - min(p.shared, p.resident) }

// parseStat reads the fields of /proc/<pid>/stat that a process needs. The
// command name, in parentheses, may itself contain spaces and parentheses.
func parseStat(line []byte) (process, error) {
	var p process
	end := bytes.LastIndexByte(line, ')')
	open := bytes.IndexByte(line, '(')
	if open < 1 || end < open {
		return p, fmt.Errorf("parse stat %q: no command name", line)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(line[:open])))
	if err != nil {
		return p, fmt.Errorf("parse stat: %w", err)
	}
	f := bytes.Fields(line[end+1:]) // f[0] is field 3 of proc_pid_stat(5)
	if len(f) < 22 {
		return p, fmt.Errorf("parse stat of process %d: %d fields", pid, len(f))
	}
	var bad error
	number := func(i int) uint64 {
		n, err := strconv.ParseUint(string(f[i-3]), 10, 64)
		bad = errors.Join(bad, err)
		return n
	}
	p.pid, p.parent, p.start = pid, int(number(4)), number(22)
	// Times of children that were waited for are counted with the parent, so
	// nothing is lost when a process ends; a zombie keeps its own.
	p.cpu = time.Duration(number(14)+number(15)+number(16)+number(17)) * clockTick
	if bad != nil {
		return p, fmt.Errorf("parse stat of process %d: %w", pid, bad)
	}
	return p, nil
}

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

// parsePSS reads the proportional set size of a smaps_rollup file, in bytes.
func parsePSS(b []byte) (uint64, error) {
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("Pss:")); ok {
			f := bytes.Fields(rest)
			if len(f) != 2 {
				break
			}
			kib, err := strconv.ParseUint(string(f[0]), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("parse smaps_rollup: no Pss line")
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
		processes[p.pid] = p
		seen[p.pid] = nsEntry{p.start, p.pidNS}
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
	p, err := parseStat(stat)
	if err != nil {
		return process{}, err
	}
	statm, err := readSmall(filepath.Join(t.root, name, "statm"), buf)
	if err != nil {
		return process{}, err
	}
	if p.resident, p.shared, err = parseStatm(statm, t.pageSize); err != nil {
		return process{}, err
	}
	if known, ok := t.names[p.pid]; ok && known.start == p.start && known.pidNS != "" {
		p.pidNS = known.pidNS
	} else if ns, err := os.Readlink(filepath.Join(t.root, name, "ns", "pid")); err == nil {
		p.pidNS = ns // a zombie has none; its ancestors show where it belongs
	}
	return p, nil
}

// pss reads the proportional set size of a process, in bytes. The kernel walks
// all its pages for it, so it is for small processes.
func (t *table) pss(pid int) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(t.root, strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		return 0, err
	}
	return parsePSS(b)
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
