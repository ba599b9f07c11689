package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// kfd is the device file that all AMD GPUs share.
const kfd = "/dev/kfd"

// amdGPUs returns the GPUs that the driver amdkfd lists. A program needs kfd and the render
// node of its GPU. The libraries come with the image.
func (m Machine) amdGPUs() []gpu {
	var all []gpu
	properties, _ := filepath.Glob(m.at("/sys/class/kfd/kfd/topology/nodes/*/properties"))
	for _, path := range properties {
		minor := property(path, "drm_render_minor")
		if minor < firstRenderNode || property(path, "simd_count") <= 0 {
			continue // a processor
		}
		g := gpu{number: minor, bus: fmt.Sprintf("%08x", property(path, "location_id"))}
		g.nodes = []string{fmt.Sprintf("/dev/dri/renderD%d", minor)}
		cards, _ := filepath.Glob(m.at(fmt.Sprintf("/sys/class/drm/renderD%d/device/drm/card*", minor)))
		for _, card := range cards {
			g.nodes = append(g.nodes, "/dev/dri/"+filepath.Base(card))
		}
		all = append(all, g)
	}
	return all
}

// property returns the number of a property in a file with lines "NAME NUMBER", or -1 if
// there is none.
func property(path, name string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == name {
			if n, err := strconv.Atoi(fields[1]); err == nil {
				return n
			}
		}
	}
	return -1
}
