package cluster

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Resource is a kind of device that containers request by name, in whole units.
type Resource struct {
	// Name is the name in a container's request, such as nvidia.com/gpu.
	Name string
	// Units lists the units on offer; each is given to one container.
	Units []Unit
}

// Unit is one unit of a Resource.
type Unit struct {
	ID string
	// CDI is the device's name for the runtime: VENDOR/CLASS=NAME. Units that
	// share a device have the same name.
	CDI string
}

// DeviceRequest is one --device option.
type DeviceRequest struct {
	// Resource is the name in containers' requests.
	Resource string
	// Shares is the number of containers that may have the device at the same
	// time.
	Shares int
	// Paths are device files, or folders of them; empty where CDI is set.
	Paths []string
	// CDI is the name of a device in a specification of the host's.
	CDI string
}

// maxShares bounds DeviceRequest.Shares, because the kubelet keeps a record of
// each share.
const maxShares = 1024

// Resource names as the API server takes them, and names of CDI devices.
var (
	resourceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	cdiName      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]*$`)
	forbidden    = regexp.MustCompile(`[^A-Za-z0-9_.-]`)
)

// ParseDevice reads a value of --device: [RESOURCE[:SHARES]=]PATH[,PATH]... or
// VENDOR/CLASS[:SHARES]=NAME for a device that the site describes by CDI.
func ParseDevice(value string) (DeviceRequest, error) {
	wrong := func(what string) error {
		return fmt.Errorf("device %q: %s: give --device /dev/infiniband, --device rdma/hca:16=/dev/infiniband or --device VENDOR/CLASS=NAME", value, what)
	}
	request := DeviceRequest{Shares: 1}
	device := value
	if !strings.HasPrefix(value, "/") {
		var named bool
		if request.Resource, device, named = strings.Cut(value, "="); !named {
			return DeviceRequest{}, wrong("no absolute path")
		}
		if name, count, counted := strings.Cut(request.Resource, ":"); counted {
			shares, err := strconv.Atoi(count)
			if err != nil || shares < 1 || shares > maxShares {
				return DeviceRequest{}, wrong(fmt.Sprintf("%s is not a number of shares from 1 to %d", count, maxShares))
			}
			request.Resource, request.Shares = name, shares
		}
		if domain, _, _ := strings.Cut(request.Resource, "/"); !resourceName.MatchString(request.Resource) || strings.HasSuffix(domain, "kubernetes.io") {
			return DeviceRequest{}, wrong(fmt.Sprintf("%q is not the name of a resource", request.Resource))
		}
		if !strings.HasPrefix(device, "/") {
			if !cdiName.MatchString(device) {
				return DeviceRequest{}, wrong(fmt.Sprintf("%q is neither an absolute path nor the name of a CDI device", device))
			}
			request.CDI = request.Resource + "=" + device
			return request, nil
		}
	}
	for path := range strings.SplitSeq(device, ",") {
		if !filepath.IsAbs(path) {
			return DeviceRequest{}, wrong(fmt.Sprintf("%q is not an absolute path", path))
		}
		request.Paths = append(request.Paths, filepath.Clean(path))
	}
	if request.Resource == "" {
		request.Resource = "berth.dev/" + forbidden.ReplaceAllString(filepath.Base(request.Paths[0]), "-")
		if !resourceName.MatchString(request.Resource) {
			return DeviceRequest{}, wrong("its file name cannot be the name of a resource")
		}
	}
	return request, nil
}
