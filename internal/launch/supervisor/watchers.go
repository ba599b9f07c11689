package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	shimProgram = "containerd-shim-berth-v2"
	// maxBundle bounds the bytes of a shim's config.json.
	maxBundle = 1 << 20
)

// objectName matches names that Kubernetes allows, and others that are safe to print.
var objectName = regexp.MustCompile(`^[a-z0-9.-]{1,253}$`)

// moreWatchers explains to the user how to get more inotify instances.
const moreWatchers = "your other runs or programs use all that a user may have on this machine: end some, " +
	"or an administrator allows more: sysctl -w fs.inotify.max_user_instances=8192"

// MoreWatchers returns an explanation of how to get more inotify instances. It names the
// pod that has most of them, if there is one.
func MoreWatchers() string {
	pod, instances := mostWatchers("/proc")
	if instances == 0 {
		return moreWatchers
	}
	return fmt.Sprintf("pod %s has %d of them; %s", pod, instances, moreWatchers)
}

// mostWatchers returns the pod whose processes have most instances of inotify, as far as
// the user may see them.
func mostWatchers(proc string) (pod string, instances int) {
	return podWithMost(proc, processesIn(proc), watchersOf)
}

// processesIn returns the ids of all processes.
func processesIn(proc string) (all []string) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err == nil {
			all = append(all, entry.Name())
		}
	}
	return all
}

// podWithMost returns the pod whose processes have most of something, and how much. amount
// returns what one process has.
func podWithMost(proc string, processes []string, amount func(proc, process string) int) (pod string, most int) {
	byShim := map[string]int{}
	for _, process := range processes {
		if n := amount(proc, process); n > 0 {
			byShim[shimOf(proc, process)] += n
		}
	}
	for shim, n := range byShim {
		if name := podOf(proc, shim); name != "" && (n > most || n == most && name < pod) {
			pod, most = name, n
		}
	}
	return pod, most
}

func watchersOf(proc string, process string) (count int) {
	files, err := os.ReadDir(filepath.Join(proc, process, "fd"))
	if err != nil {
		return 0
	}
	for _, file := range files {
		if target, err := os.Readlink(filepath.Join(proc, process, "fd", file.Name())); err == nil && strings.HasSuffix(target, "inotify") {
			count++
		}
	}
	return count
}

// shimOf returns the shim that a process descends from, or "". A shim is the ancestor of
// all processes of its pod, which cannot leave it. The pod may run the same program, so the
// topmost ancestor with it is the shim.
func shimOf(proc string, process string) (shim string) {
	for range 1000 { // processes come and go meanwhile, so it might not end
		if process = parentOf(proc, process); process == "" || process == "0" {
			break
		}
		program, err := os.Readlink(filepath.Join(proc, process, "exe"))
		if err == nil && filepath.Base(strings.TrimSuffix(program, " (deleted)")) == shimProgram {
			shim = process
		}
	}
	return shim
}

func parentOf(proc string, process string) string {
	stat, err := os.ReadFile(filepath.Join(proc, process, "stat"))
	if err != nil {
		return ""
	}
	// "12 (any text) S 11 ...": the parent is the second field after the name.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 {
		return ""
	}
	return fields[1]
}

// podOf returns the name of a shim's pod from its bundle, which is its working directory.
func podOf(proc string, shim string) string {
	if shim == "" {
		return ""
	}
	text, err := readBundle(filepath.Join(proc, shim, "cwd", "config.json"))
	if err != nil {
		return ""
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if json.Unmarshal(text, &spec) != nil {
		return ""
	}
	namespace, name := spec.Annotations["io.kubernetes.cri.sandbox-namespace"], spec.Annotations["io.kubernetes.cri.sandbox-name"]
	if !objectName.MatchString(namespace) || !objectName.MatchString(name) {
		return ""
	}
	return namespace + "/" + name
}

// readBundle returns the first maxBundle bytes of a file. It does not wait for a pipe, nor
// read one or a device.
func readBundle(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: it is not a file", path)
	}
	return io.ReadAll(io.LimitReader(file, maxBundle))
}
