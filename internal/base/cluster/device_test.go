package cluster

import (
	"reflect"
	"testing"
)

func TestParseDevice(t *testing.T) {
	for value, want := range map[string]DeviceRequest{
		"/dev/infiniband/uverbs0":          {Resource: "berth.dev/uverbs0", Shares: 1, Paths: []string{"/dev/infiniband/uverbs0"}},
		"/dev/a,/dev/b/":                   {Resource: "berth.dev/a", Shares: 1, Paths: []string{"/dev/a", "/dev/b"}},
		"rdma/hca:16=/dev/infiniband":      {Resource: "rdma/hca", Shares: 16, Paths: []string{"/dev/infiniband"}},
		"site.org/card=/dev/card0":         {Resource: "site.org/card", Shares: 1, Paths: []string{"/dev/card0"}},
		"vendor.com/net:4=nic0":            {Resource: "vendor.com/net", Shares: 4, CDI: "vendor.com/net=nic0"},
		"/dev/bus/usb@1":                   {Resource: "berth.dev/usb-1", Shares: 1, Paths: []string{"/dev/bus/usb@1"}},
		"site.org/all=/dev/x=1,/dev/y":     {Resource: "site.org/all", Shares: 1, Paths: []string{"/dev/x=1", "/dev/y"}},
		"nvidia.com/gpu=/dev/fake":         {Resource: "nvidia.com/gpu", Shares: 1, Paths: []string{"/dev/fake"}},
		"example.org/UPPER_case.1=/dev/ab": {Resource: "example.org/UPPER_case.1", Shares: 1, Paths: []string{"/dev/ab"}},
	} {
		if got, err := ParseDevice(value); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ParseDevice(%q) = %+v, %v, want %+v", value, got, err, want)
		}
	}
	for _, value := range []string{
		"", "infiniband", "dev/infiniband", "rdma=/dev/x", "rdma/hca:0=/dev/x", "rdma/hca:many=/dev/x", "rdma/hca:99999=/dev/x",
		"kubernetes.io/x=/dev/x", "node.kubernetes.io/x=/dev/x", "rdma/hca=", "rdma/hca=a b", "/dev/x,dev/y", "/dev/x,", "/",
	} {
		if got, err := ParseDevice(value); err == nil {
			t.Errorf("ParseDevice(%q) = %+v, want an error", value, got)
		}
	}
}
