package probe

import (
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Host answers questions about one machine, as the calling process sees it. It
// reads each file once. It is safe for concurrent use.
type Host struct {
	files
	users users
	used  inUse

	getenv func(string) string
	uid    int
	kernel kernel

	mounts  func() []mountEntry
	status  func() map[string]string
	cgroups func() map[string]string
}

// kernel provides the facts about a machine that are in no file. Tests replace it.
type kernel interface {
	Statfs(path string) (filesystem, error)
	// Access tries access(2) with the effective ids; a directory is written to
	// and searched with W_OK|X_OK.
	Access(path string, mode uint32) error
	// Affinity counts the processors that the process may run on.
	Affinity() (int, error)
	// Limit returns the soft and hard value of a resource limit.
	Limit(resource int) (soft, hard uint64, err error)
	// PrivilegedFile returns how a program gains privilege: "setuid", "file
	// capabilities", or "" if it does not.
	PrivilegedFile(path string) string
	// SourceTowards returns the source address of packets to another address; the
	// zero value if no route leads there.
	SourceTowards(to netip.Addr) netip.Addr
}

// Local returns the machine that the process runs on.
func Local() *Host {
	return newHost(os.DirFS("/"), os.Getenv, os.Getuid(), localKernel{})
}

func newHost(root fs.FS, getenv func(string) string, uid int, k kernel) *Host {
	f := files{root}
	h := &Host{files: f, users: users{f, uid, getenv}, used: inUse{f, uid}, getenv: getenv, uid: uid, kernel: k}
	h.mounts = sync.OnceValue(func() []mountEntry {
		return parseMountinfo(h.read("/proc/self/mountinfo"))
	})
	h.status = sync.OnceValue(func() map[string]string {
		return parseColons(h.read("/proc/self/status"))
	})
	h.cgroups = sync.OnceValue(func() map[string]string {
		return parseCgroup(h.read("/proc/self/cgroup"))
	})
	return h
}

// parseColons reads "Key:  value" lines, as in /proc/self/status.
func parseColons(content []byte) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(string(content)) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			values[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return values
}

type localKernel struct{}

func (localKernel) Statfs(path string) (filesystem, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return filesystem{}, err
	}
	block := uint64(s.Bsize)
	return filesystem{
		Magic:       uint32(s.Type),
		FreeBytes:   s.Bavail * block,
		TotalBytes:  s.Blocks * block,
		FreeInodes:  s.Ffree,
		TotalInodes: s.Files,
		ReadOnly:    s.Flags&unix.ST_RDONLY != 0,
		NoExec:      s.Flags&unix.ST_NOEXEC != 0,
		NoSUID:      s.Flags&unix.ST_NOSUID != 0,
	}, nil
}

func (localKernel) Access(path string, mode uint32) error {
	return unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS)
}

func (localKernel) Affinity() (int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, err
	}
	return set.Count(), nil
}

func (localKernel) Limit(resource int) (soft, hard uint64, err error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil {
		return 0, 0, err
	}
	return limit.Cur, limit.Max, nil
}

// SourceTowards connects a UDP socket, which sends no packet.
func (localKernel) SourceTowards(to netip.Addr) netip.Addr {
	const discard = 9
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, discard)))
	if err != nil {
		return netip.Addr{}
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
}

func (localKernel) PrivilegedFile(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	if info.Mode()&os.ModeSetuid != 0 {
		return "setuid"
	}
	if n, err := unix.Getxattr(path, "security.capability", nil); err == nil && n > 0 {
		return "file capabilities"
	}
	return ""
}
