// Package resourceview shows a container its own limits in the files that
// programs read to size themselves: some of /proc and /sys, and a tree that
// looks like a cgroup's. It makes the text of these files and serves them by
// FUSE, or writes them once where there is no FUSE.
//
// Package task measures the usage and mounts the files.
package resourceview

import (
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/utils/cpuset"
)

// Limits holds what a container may use.
type Limits struct {
	// Memory in bytes.
	Memory uint64
	// MilliCPU is the CPU limit in thousandths of a CPU; 0 means none.
	MilliCPU int64
	// CPUs are the CPUs that the container sees.
	CPUs cpuset.CPUSet
}

// Usage holds what the processes of a container use.
type Usage struct {
	// Anonymous, Shared, Mapped and PageTables are bytes of anonymous memory, of tmpfs,
	// of mapped files, and of the kernel's page tables.
	Anonymous, Shared, Mapped, PageTables uint64
	User, System                          time.Duration
	Faults, MajorFaults                   uint64
	Threads                               int
}

// charged returns the bytes of memory that the kernel could not reclaim.
func (u Usage) charged() uint64 { return u.Anonymous + u.Shared + u.PageTables }

// View makes the files of one container.
type View struct {
	Limits func() Limits
	// Usage is called for each read of a file that needs it. If it is nil, the
	// files are written once, without the ones that need it.
	Usage func() Usage
	// Proc is the machine's proc file system.
	Proc string
	// Version1 adds the names of cgroup version 1 for programs that look there
	// because /proc/self/cgroup lists hierarchies of version 1.
	Version1 bool

	load load
}

// Version1 reports whether processes are in cgroups of version 1.
func Version1(proc string) bool {
	text, err := os.ReadFile(filepath.Join(proc, "self/cgroup"))
	// With only version 2 there is one line, "0::/path".
	return err == nil && len(text) > 0 && text[0] != '0'
}

// Paths of what is shown, as containers name them.
const (
	cgroupRoot = "/sys/fs/cgroup"
	procDir    = "/proc/"
	onlineFile = "/sys/devices/system/cpu/online"
)

// Mounts returns the paths in a container that a view covers. cgroupRoot is a
// directory, the others are files.
func (v *View) Mounts() []string {
	paths := []string{cgroupRoot, onlineFile, procDir + "meminfo", procDir + "cpuinfo"}
	if v.Usage != nil {
		paths = append(paths, procDir+"stat", procDir+"loadavg", procDir+"uptime")
	}
	return paths
}

// Files returns the functions that make the text of each file, by the file's
// path in the container.
func (v *View) Files() map[string]func() string {
	files := map[string]func() string{
		procDir + "meminfo": func() string { return meminfo(v.read("meminfo"), v.Limits(), v.usage()) },
		procDir + "cpuinfo": func() string { return cpuinfo(v.read("cpuinfo"), v.Limits().CPUs) },
		onlineFile:          func() string { return v.Limits().CPUs.String() + "\n" },
	}
	if v.Usage != nil {
		files[procDir+"stat"] = func() string { return stat(v.read("stat"), v.Limits().CPUs) }
		files[procDir+"uptime"] = func() string { return uptime(v.read("uptime"), v.read("stat"), v.Limits().CPUs) }
		files[procDir+"loadavg"] = func() string { return v.load.text(v.usage(), time.Now(), v.read("loadavg")) }
	}
	for name, text := range v.cgroup() {
		files[cgroupRoot+"/"+name] = text
	}
	return files
}

// usage returns zero if v.Usage is nil.
func (v *View) usage() Usage {
	if v.Usage == nil {
		return Usage{}
	}
	return v.Usage()
}

// read returns a file of the machine, empty where it cannot be read.
func (v *View) read(name string) string {
	text, err := os.ReadFile(filepath.Join(v.Proc, name))
	if err != nil {
		return ""
	}
	return string(text)
}

// load is the load average of a container: the number of CPUs that it keeps busy, averaged
// with the kernel's time constants. It is computed only when it is read, and assumes a
// constant use since the last read. So it costs nothing in a container that never reads it.
type load struct {
	mu sync.Mutex
	// at is the time of the last computation, and ran the CPU time used until then.
	at     time.Time
	ran    time.Duration
	values [3]float64
}

// advance returns the load over the last 1, 5 and 15 minutes. ran is the CPU time that the
// container has used until now.
func (l *load) advance(ran time.Duration, now time.Time) [3]float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := now.Sub(l.at)
	switch {
	case l.at.IsZero():
	case since < time.Second:
		return l.values
	default:
		busy := max(0, ran-l.ran).Seconds() / since.Seconds()
		for i, minutes := range []float64{1, 5, 15} {
			kept := math.Exp(-since.Minutes() / minutes)
			l.values[i] = l.values[i]*kept + busy*(1-kept)
		}
	}
	l.at, l.ran = now, ran
	return l.values
}
