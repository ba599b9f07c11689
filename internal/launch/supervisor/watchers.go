package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// moreWatchers explains to the user how to get more inotify instances.
const moreWatchers = "your other runs or programs use all that a user may have on this machine: end some, " +
	"or an administrator allows more: sysctl -w fs.inotify.max_user_instances=8192"

// MoreWatchers returns an explanation of how to get more inotify instances. It names the
// pod that has most of them, if there is one.
func MoreWatchers() string {
	pod, instances := mostWatchers(os.DirFS("/proc"))
	if instances == 0 {
		return moreWatchers
	}
	return fmt.Sprintf("pod %s has %d of them; %s", pod, instances, moreWatchers)
}

// mostWatchers returns the pod whose processes have most instances of inotify, as far as
// the user may see them.
func mostWatchers(proc fs.FS) (pod string, instances int) {
	processes, err := fs.ReadDir(proc, ".")
	if err != nil {
		return "", 0
	}
	byShim := map[string]int{}
	for _, process := range processes {
		if _, err := strconv.Atoi(process.Name()); err != nil {
			continue
		}
		if count := watchersOf(proc, process.Name()); count > 0 {
			byShim[shimOf(proc, process.Name())] += count
		}
	}
	for shim, count := range byShim {
		if name := podOf(proc, shim); name != "" && (count > instances || count == instances && name < pod) {
			pod, instances = name, count
		}
	}
	return pod, instances
}

func watchersOf(proc fs.FS, process string) (count int) {
	files, err := fs.ReadDir(proc, path.Join(process, "fd"))
	if err != nil {
		return 0
	}
	for _, file := range files {
		if target, err := fs.ReadLink(proc, path.Join(process, "fd", file.Name())); err == nil && strings.HasSuffix(target, "inotify") {
			count++
		}
	}
	return count
}

// shimOf returns the shim that a process descends from, or "". A shim is the ancestor of
// all processes of its pod, which cannot leave it.
func shimOf(proc fs.FS, process string) string {
	for range 1000 { // processes come and go meanwhile, so it might not end
		if process = parentOf(proc, process); process == "" || process == "0" {
			return ""
		}
		program, err := fs.ReadFile(proc, path.Join(process, "cmdline"))
		if err == nil && strings.HasPrefix(path.Base(string(bytes.SplitN(program, []byte{0}, 2)[0])), "containerd-shim") {
			return process
		}
	}
	return ""
}

func parentOf(proc fs.FS, process string) string {
	stat, err := fs.ReadFile(proc, path.Join(process, "stat"))
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
func podOf(proc fs.FS, shim string) string {
	if shim == "" {
		return ""
	}
	text, err := fs.ReadFile(proc, path.Join(shim, "cwd", "config.json"))
	if err != nil {
		return ""
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if json.Unmarshal(text, &spec) != nil || spec.Annotations["io.kubernetes.cri.sandbox-name"] == "" {
		return ""
	}
	return spec.Annotations["io.kubernetes.cri.sandbox-namespace"] + "/" + spec.Annotations["io.kubernetes.cri.sandbox-name"]
}
