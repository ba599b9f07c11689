package procstats

import (
	"os"
	"strconv"
	"strings"

	cadvisorv1 "github.com/google/cadvisor/info/v1"
	cadvisorv2 "github.com/google/cadvisor/info/v2"
	"golang.org/x/sys/unix"
)

// network reads the interface counters of the network namespace of pid; nil
// where that is the node's own, or the process is gone.
func network(pid int) *cadvisorv2.NetworkStats {
	dir := "/proc/" + strconv.Itoa(pid)
	ns, err := os.Readlink(dir + "/ns/net")
	if err != nil {
		return nil
	}
	if own, err := os.Readlink("/proc/self/ns/net"); err != nil || own == ns {
		return nil
	}
	text, err := os.ReadFile(dir + "/net/dev")
	if err != nil {
		return nil
	}
	return &cadvisorv2.NetworkStats{Interfaces: parseNetDev(string(text))}
}

func parseNetDev(text string) []cadvisorv1.InterfaceStats {
	var all []cadvisorv1.InterfaceStats
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		f := strings.Fields(rest)
		if !ok || name == "lo" || len(f) < 12 {
			continue
		}
		n := func(i int) uint64 { v, _ := strconv.ParseUint(f[i], 10, 64); return v }
		all = append(all, cadvisorv1.InterfaceStats{
			Name: name, RxBytes: n(0), RxPackets: n(1), RxErrors: n(2), RxDropped: n(3),
			TxBytes: n(8), TxPackets: n(9), TxErrors: n(10), TxDropped: n(11),
		})
	}
	return all
}

// tmpfsUsage adds up what tmpfs mounts hold: volumes in memory, the shared
// memory of pods, the node's own small state. The kernel does not report who made
// a mount, so those at the places where a host has its own are left out. Files
// in a pod's volumes below the kubelet's root are counted for the pod, too.
func tmpfsUsage(kubelet string) (total uint64, pods map[string]uint64) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0, nil
	}
	pods = map[string]uint64{}
	for _, path := range tmpfsMounts(string(text)) {
		var fs unix.Statfs_t
		if unix.Statfs(path, &fs) != nil {
			continue
		}
		used := (fs.Blocks - fs.Bfree) * uint64(fs.Bsize)
		total += used
		if uid := podOf(kubelet, path); uid != "" {
			pods[uid] += used
		}
	}
	return total, pods
}

// podOf returns the uid of the pod that has a volume at path, or "".
func podOf(kubelet, path string) string {
	rest, ok := strings.CutPrefix(path, kubelet+"/pods/")
	uid, rest, inside := strings.Cut(rest, "/")
	if !ok || !inside || !strings.HasPrefix(rest, "volumes/") {
		return ""
	}
	return uid
}

// tmpfsMounts returns one path for each tmpfs in a mountinfo file.
func tmpfsMounts(mountinfo string) []string {
	var paths []string
	seen := map[string]bool{}
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if !ok || len(f) < 5 || !strings.HasPrefix(after, "tmpfs ") {
			continue
		}
		path := unescape(f[4])
		if seen[f[2]] || hostTmpfs(path) {
			continue
		}
		seen[f[2]] = true
		paths = append(paths, path)
	}
	return paths
}

func hostTmpfs(path string) bool {
	for _, p := range []string{"/dev", "/tmp", "/sys", "/var/tmp"} {
		if path == p || p != "/tmp" && p != "/var/tmp" && strings.HasPrefix(path, p+"/") {
			return true
		}
	}
	return false
}

// unescape undoes mountinfo's octal escapes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
