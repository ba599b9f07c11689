package bundle

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Probe returns what the node allows. It never fails: a file that cannot be read counts as
// absent. The caller sets GuardOwners.
func Probe() Node {
	return Node{
		Controllers: delegated("/sys/fs/cgroup"),
		OneUID:      oneID("/proc/self/gid_map") || oneID("/proc/self/uid_map"),
		OOMScoreAdj: ownOOMScoreAdj(),
		Proxy:       proxySettings(os.Environ()),
	}
}

// delegated returns the controllers that containers may use below root; nil if no cgroup can
// be created there. The launcher mounts an empty cgroup2 over a hierarchy of the host that
// the user may not write to. So no additional setting is needed, which could contradict the
// actual state.
func delegated(root string) []string {
	text, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil || unix.Access(root, unix.W_OK) != nil ||
		unix.Access(filepath.Join(root, "cgroup.procs"), unix.W_OK) != nil {
		return nil
	}
	return append([]string{}, strings.Fields(string(text))...)
}

// oneID reports whether an id map has a single id.
func oneID(path string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	fields := strings.Fields(string(text))
	return len(fields) == 3 && fields[2] == "1"
}

func ownOOMScoreAdj() int {
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return v
}

func proxySettings(environ []string) (proxy []string) {
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		switch strings.ToUpper(name) {
		case "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY":
			if value != "" {
				proxy = append(proxy, e)
			}
		}
	}
	return proxy
}
