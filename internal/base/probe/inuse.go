package probe

import (
	"io/fs"
	"strconv"
	"strings"
)

// inUse counts what the processes that can be seen take of the machine's limits.
type inUse struct {
	files
	uid int
}

// ownThreads counts the threads of the user: RLIMIT_NPROC counts them all.
func (u inUse) ownThreads() uint64 {
	threads := uint64(0)
	for _, process := range u.processes() {
		values := parseColons(u.read(process + "/status"))
		if owner, _, _ := strings.Cut(values["Uid"], "\t"); owner == strconv.Itoa(u.uid) {
			n, _ := strconv.ParseUint(values["Threads"], 10, 32)
			threads += n
		}
	}
	return threads
}

// allThreads returns the number of threads of the machine.
func (u inUse) allThreads() uint64 {
	// "0.20 0.18 0.12 1/80 11206": the fourth is running/all.
	fields := strings.Fields(string(u.read("/proc/loadavg")))
	if len(fields) < 4 {
		return 0
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, _ := strconv.ParseUint(all, 10, 64)
	return n
}

// inotifyInstances counts the instances of all processes that this user may
// inspect.
func (u inUse) inotifyInstances() uint64 {
	count := uint64(0)
	for _, process := range u.processes() {
		descriptors, err := fs.ReadDir(u.root, process+"/fd")
		if err != nil {
			continue
		}
		for _, descriptor := range descriptors {
			target, err := fs.ReadLink(u.root, process+"/fd/"+descriptor.Name())
			if err == nil && strings.HasSuffix(target, "inotify") {
				count++
			}
		}
	}
	return count
}

// keys returns the number of kernel keys of the user.
func (u inUse) keys() uint64 {
	for line := range strings.Lines(string(u.read("/proc/key-users"))) {
		// "1001:    23 22/22 12/200 300/20000": the fourth is used/limit.
		fields := strings.Fields(line)
		if len(fields) >= 4 && fields[0] == strconv.Itoa(u.uid)+":" {
			count, _, _ := strings.Cut(fields[3], "/")
			n, _ := strconv.ParseUint(count, 10, 64)
			return n
		}
	}
	return 0
}

// namespaces returns the number of namespaces of a kind that processes of the user
// have, besides this process's own.
func (u inUse) namespaces(kind string) uint64 {
	seen := map[string]bool{}
	for _, process := range u.processes() {
		if target, err := fs.ReadLink(u.root, process+"/ns/"+kind); err == nil {
			seen[target] = true
		}
	}
	if own, err := fs.ReadLink(u.root, "proc/self/ns/"+kind); err == nil {
		delete(seen, own)
	}
	return uint64(len(seen))
}
