package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// A container with a GPU gets the user-space files of NVIDIA's driver from the host:
// libraries, and a few programs. Their version must be that of the kernel module. NVIDIA's
// library that lists them (nvcdi) asks the driver through its C library, which a static
// program cannot load. So this package finds the files by their names: the libraries of one
// driver end in its version.

// driverFolder is the directory of the driver's libraries in containers. Images
// made for CUDA look there.
const driverFolder = "/usr/local/nvidia/lib64"

// sharedNodes are the device files that every program needs beside its GPU's.
var sharedNodes = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// driverPrograms and driverFiles come with the driver where they exist.
var (
	driverPrograms = []string{"nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}
	driverFiles    = []string{
		"/usr/share/vulkan/icd.d/nvidia_icd.json", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
		"/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json", "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
	}
)

var numberedNode = regexp.MustCompile(`^nvidia(\d+)$`)

// nvidiaGPUs lists the GPUs that have a device file.
func (m Machine) nvidiaGPUs() []gpu {
	var all []gpu
	entries, _ := os.ReadDir(m.at("/dev"))
	for _, entry := range entries {
		if match := numberedNode.FindStringSubmatch(entry.Name()); match != nil {
			if n, err := strconv.Atoi(match[1]); err == nil {
				all = append(all, gpu{number: n, nodes: []string{"/dev/" + entry.Name()}})
			}
		}
	}
	// If berth itself runs in a container, the driver's reports about the GPUs may be
	// missing.
	reports, _ := filepath.Glob(m.at("/proc/driver/nvidia/gpus/*/information"))
	for _, path := range reports {
		minor, uuid := information(path)
		i := slices.IndexFunc(all, func(g gpu) bool { return g.number == minor })
		if i < 0 {
			continue
		}
		bus := strings.ToLower(filepath.Base(filepath.Dir(path)))
		all[i].bus, all[i].uuid = bus, uuid
		drm, _ := filepath.Glob(m.at(fmt.Sprintf("/sys/bus/pci/devices/%s/drm/*", bus)))
		for _, node := range drm {
			all[i].nodes = append(all[i].nodes, "/dev/dri/"+filepath.Base(node))
		}
	}
	return all
}

// information returns the minor number and the UUID of a GPU from a report of the driver.
// The number is -1 if the report has none.
func information(path string) (minor int, uuid string) {
	minor = -1
	text, err := os.ReadFile(path)
	if err != nil {
		return minor, ""
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "Device Minor":
			if n, err := strconv.Atoi(value); err == nil {
				minor = n
			}
		case "GPU UUID":
			uuid = value
		}
	}
	return minor, uuid
}

// nvidiaDriver returns the edits that every container with a GPU gets.
func (m Machine) nvidiaDriver(wish Wish, found *Found) cdi.ContainerEdits {
	edits := cdi.ContainerEdits{DeviceNodes: m.nodes(sharedNodes)}
	driver := m.findDriver(m.libraryFolders(wish.LibraryPath))
	if driver.version == "" {
		found.notice("pods get the GPUs without NVIDIA's driver libraries: libcuda.so.1 is in no folder of LD_LIBRARY_PATH, /etc/ld.so.conf or the usual ones of this host")
		return edits
	}
	for _, path := range driver.libraries {
		edits.Mounts = append(edits.Mounts, bind(path, filepath.Join(driverFolder, filepath.Base(path))))
	}
	for _, name := range driverPrograms {
		if path := m.program(name, driver.folders); path != "" {
			edits.Mounts = append(edits.Mounts, bind(path, "/usr/bin/"+name))
		}
	}
	for _, path := range driverFiles {
		if _, err := os.Stat(m.at(path)); err == nil {
			edits.Mounts = append(edits.Mounts, bind(m.at(path), path))
		}
	}
	args := []string{filepath.Base(wish.Hook), "libraries", "--folder", driverFolder}
	edits.Hooks = []*cdi.Hook{{HookName: "createContainer", Path: wish.Hook, Args: append(args, driver.links...)}}
	return edits
}

func bind(from, to string) *cdi.Mount {
	return &cdi.Mount{HostPath: from, ContainerPath: to, Options: []string{"ro", "nosuid", "nodev", "bind"}}
}

// program finds a program of the driver beside its libraries, or where programs
// are.
func (m Machine) program(name string, folders []string) string {
	var candidates []string
	for _, folder := range folders {
		candidates = append(candidates, filepath.Join(filepath.Dir(folder), "bin"))
	}
	for _, folder := range append(candidates, "/usr/bin", "/usr/local/nvidia/bin", "/opt/bin") {
		path, err := filepath.EvalSymlinks(m.at(filepath.Join(folder, name)))
		if err != nil {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}
