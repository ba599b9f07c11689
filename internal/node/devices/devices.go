// Package devices finds the devices of a machine that a job may use, and
// describes them: to Kubernetes as resources, to the container runtime by CDI
// specifications.
//
// It reads files of the host and opens no device. Handing units to containers
// belongs to the node role, putting them into containers to the runtime.
package devices

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"berth.dev/berth/internal/base/cluster"
)

// Wish describes the devices that a node should offer.
type Wish struct {
	// GPUs lists the job's GPUs on this node.
	GPUs GPUs
	// Requests lists the devices that the user requested.
	Requests []cluster.DeviceRequest
	// Part of Parts selects this node's share if several nodes share the machine:
	// GPUs are dealt out in turn.
	Part, Parts int
	// LibraryPath is the user's LD_LIBRARY_PATH.
	LibraryPath string
	// Hook is the program that runs in a container before its own.
	Hook string
}

// Found holds the devices of a node.
type Found struct {
	Resources []cluster.Resource
	// Specs maps file names to CDI specifications.
	Specs map[string][]byte
	// Notices lists devices that are not offered, with reasons.
	Notices []string
}

// vendor is berth's vendor in the names of CDI devices, which then differ from all names
// in the site's specifications.
const vendor = "berth.dev"

// cdiVersion is the oldest version of CDI with all features that are used here.
const cdiVersion = "0.5.0"

// Machine is the file system below Root, where devices are searched.
type Machine struct{ Root string }

// Find returns the devices that a node should offer.
func (m Machine) Find(wish Wish) (Found, error) {
	found := Found{Specs: map[string][]byte{}}
	for _, find := range []func(Wish, *Found) (*cdi.Spec, error){m.findGPUs, m.findRequested} {
		spec, err := find(wish, &found)
		if err != nil {
			return Found{}, err
		}
		if spec == nil || len(spec.Devices) == 0 {
			continue
		}
		_, class, _ := strings.Cut(spec.Kind, "/")
		text, err := json.MarshalIndent(spec, "", "  ")
		if err != nil {
			return Found{}, fmt.Errorf("describe devices by CDI: %w", err)
		}
		found.Specs["berth-"+class+".json"] = text
	}
	return found, nil
}

func (f *Found) notice(format string, values ...any) {
	f.Notices = append(f.Notices, fmt.Sprintf(format, values...))
}

// add adds a unit to a new or existing resource.
func (f *Found) add(resource string, unit cluster.Unit) {
	i := slices.IndexFunc(f.Resources, func(r cluster.Resource) bool { return r.Name == resource })
	if i < 0 {
		i = len(f.Resources)
		f.Resources = append(f.Resources, cluster.Resource{Name: resource})
	}
	f.Resources[i].Units = append(f.Resources[i].Units, unit)
}

// gpu is a GPU of the machine.
type gpu struct {
	// number is the minor number of the device file of an NVIDIA GPU, or of the
	// render node of an AMD GPU.
	number int
	// bus is its PCI address. GPUs are numbered in the order of their addresses.
	bus, uuid string
	// nodes lists its device files.
	nodes []string
}

// findGPUs finds the job's GPUs. A machine has GPUs of only one vendor.
func (m Machine) findGPUs(wish Wish, found *Found) (*cdi.Spec, error) {
	if wish.GPUs.none() {
		return nil, nil
	}
	resource, spec := "nvidia.com/gpu", &cdi.Spec{Version: cdiVersion, Kind: vendor + "/nvidia"}
	all := m.nvidiaGPUs()
	if len(all) == 0 {
		resource, spec = "amd.com/gpu", &cdi.Spec{Version: cdiVersion, Kind: vendor + "/amd"}
		all = m.amdGPUs()
	}
	slices.SortFunc(all, func(a, b gpu) int { return cmp.Or(cmp.Compare(a.bus, b.bus), cmp.Compare(a.number, b.number)) })
	all = slices.DeleteFunc(all, func(g gpu) bool { return !m.usable(g.nodes[0]) })
	chosen := wish.GPUs.choose(all, found)
	for i, g := range chosen {
		if i%max(1, wish.Parts) != wish.Part {
			continue
		}
		name := fmt.Sprint(g.number)
		m.noticeGroup(g.nodes[0], found)
		spec.Devices = append(spec.Devices, cdi.Device{Name: name, ContainerEdits: cdi.ContainerEdits{DeviceNodes: m.nodes(g.nodes)}})
		found.add(resource, cluster.Unit{ID: name, CDI: spec.Kind + "=" + name})
	}
	if len(spec.Devices) == 0 {
		return nil, nil
	}
	if resource == "nvidia.com/gpu" {
		spec.ContainerEdits = m.nvidiaDriver(wish, found)
	} else {
		spec.ContainerEdits.DeviceNodes = m.nodes([]string{kfd})
	}
	return spec, nil
}

// at returns the path of a file below Root.
func (m Machine) at(path string) string { return filepath.Join(m.Root, path) }

// usable reports whether a device file exists that this process may read and
// write. The kernel checks the job's control group, too. The device is not
// opened, because that can take a second for a GPU.
func (m Machine) usable(path string) bool {
	info, err := os.Stat(m.at(path))
	return err == nil && isDevice(info.Mode()) && unix.Access(m.at(path), unix.R_OK|unix.W_OK) == nil
}

// isDevice accepts named pipes as devices, as CDI does.
func isDevice(mode fs.FileMode) bool { return mode&(fs.ModeDevice|fs.ModeNamedPipe) != 0 }

// nodes returns the CDI device nodes of the usable paths.
func (m Machine) nodes(paths []string) []*cdi.DeviceNode {
	var nodes []*cdi.DeviceNode
	for _, path := range paths {
		if !m.usable(path) {
			continue
		}
		// The runtime does not accept a link as a device.
		if real, err := filepath.EvalSymlinks(m.at(path)); err == nil {
			nodes = append(nodes, &cdi.DeviceNode{Path: path, HostPath: real})
		}
	}
	return nodes
}

// noticeGroup warns of a file that opens only to the user's groups, because a
// container starts with other groups.
func (m Machine) noticeGroup(path string, found *Found) {
	var stat unix.Stat_t
	if err := unix.Stat(m.at(path), &stat); err == nil && stat.Mode&0o006 != 0o006 && int(stat.Uid) != unix.Getuid() {
		found.notice("%s is open to a group of yours (mode %04o), which pods do not have, so they may be refused it; an administrator can have it made 0666 by a udev rule", path, stat.Mode&0o7777)
	}
}
