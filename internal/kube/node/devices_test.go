package node

import (
	"testing"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth.dev/berth/internal/base/cluster"
)

func TestAllocate(t *testing.T) {
	plugin := &devicePlugin{resource: cluster.Resource{Name: "site.org/x", Units: []cluster.Unit{
		{ID: "0-0", CDI: "berth.dev/device=0"}, {ID: "0-1", CDI: "berth.dev/device=0"}, {ID: "1", CDI: "berth.dev/device=1"},
	}}}
	ask := func(ids ...string) (*api.AllocateResponse, error) {
		return plugin.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
	}
	answer, err := ask("0-1", "1", "0-0")
	if err != nil {
		t.Fatal(err)
	}
	devices := answer.ContainerResponses[0].CdiDevices
	if len(devices) != 2 || devices[0].Name != "berth.dev/device=0" || devices[1].Name != "berth.dev/device=1" {
		t.Errorf("allocated %v", devices)
	}
	if answer, err := ask("2"); err == nil {
		t.Errorf("a unit that there is not was allocated: %v", answer)
	}
}
