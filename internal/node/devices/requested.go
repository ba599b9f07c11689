package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"berth.dev/berth/internal/base/cluster"
)

// findRequested finds the devices that the user requests with --device. A node need not
// have all of them, because the nodes of a job may differ. found receives the resources,
// and a notice for each missing device.
func (m Machine) findRequested(wish Wish, found *Found) (*cdi.Spec, error) {
	spec := &cdi.Spec{Version: cdiVersion, Kind: vendor + "/device"}
	for i, request := range wish.Requests {
		name := fmt.Sprint(i)
		unit := cluster.Unit{ID: name, CDI: spec.Kind + "=" + name}
		if request.CDI != "" {
			unit.CDI = request.CDI
		} else {
			nodes := m.nodes(m.expand(request.Paths, found))
			if len(nodes) == 0 {
				found.notice("%s is not offered here: %s holds no device file that can be opened", request.Resource, strings.Join(request.Paths, ", "))
				continue
			}
			for _, node := range nodes {
				m.noticeGroup(node.Path, found)
			}
			spec.Devices = append(spec.Devices, cdi.Device{Name: name, ContainerEdits: cdi.ContainerEdits{DeviceNodes: nodes}})
		}
		for share := range request.Shares {
			unit.ID = name
			if request.Shares > 1 {
				unit.ID = fmt.Sprintf("%s-%d", name, share)
			}
			found.add(request.Resource, unit)
		}
	}
	return spec, nil
}

// expand replaces folders by the usable device files in them.
func (m Machine) expand(paths []string, found *Found) []string {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(m.at(path))
		switch {
		case err != nil:
			found.notice("%s is not offered here: %v", path, err)
		case !info.IsDir():
			files = append(files, path)
		default:
			entries, _ := os.ReadDir(m.at(path))
			for _, entry := range entries {
				if entry.Type().IsDir() || !m.usable(filepath.Join(path, entry.Name())) {
					continue
				}
				files = append(files, filepath.Join(path, entry.Name()))
			}
		}
	}
	return files
}
