package node

import (
	"bytes"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletscheme "k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"

	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/testutil"
)

func testPlan() cluster.Plan {
	return cluster.Plan{
		RunID: "job-7-0", KubernetesVersion: "v1.36.3",
		Node: cluster.Node{
			Name: "n1", Labels: map[string]string{"site/rack": "r2"}, CPUs: 3,
			MemoryBytes: 8 << 30, ReservedMemoryBytes: 1 << 30, MaxPods: 110,
		},
		Addresses: cluster.Addresses{
			Family: cluster.Family{
				Pods: netip.MustParsePrefix("10.0.0.0/16"), NodePods: netip.MustParsePrefix("10.0.4.0/23"),
				Services: netip.MustParsePrefix("10.1.0.0/16"), Node: netip.MustParseAddr("10.2.0.1"),
			},
			DNSService: netip.MustParseAddr("10.1.0.10"), APIPort: 6443,
		},
		Paths: cluster.Paths{
			Libexec: "/opt/berth/libexec", Run: "/run/berth", Scratch: "/scratch/b",
			Kubelet: "/var/lib/kubelet", Cgroup: "/sys/fs/cgroup",
		},
	}
}

func TestKubeletConfiguration(t *testing.T) {
	scheme, _, err := kubeletscheme.NewSchemeAndCodecs()
	if err != nil {
		t.Fatal(err)
	}
	yaml := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true})
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{"KubeletInUserNamespace": true}); err != nil {
		t.Fatal(err)
	}
	delegated := testPlan()
	delegated.CgroupsDelegated = true
	for name, plan := range map[string]cluster.Plan{"kubelet": testPlan(), "kubelet-delegated": delegated} {
		t.Run(name, func(t *testing.T) {
			s, err := kubeletServer(plan)
			if err != nil {
				t.Fatal(err)
			}
			if s.MaxOpenFiles <= 0 {
				t.Errorf("may open %d files", s.MaxOpenFiles)
			}
			s.MaxOpenFiles = 4242 // the machine's
			if err := options.ValidateKubeletServer(s); err != nil {
				t.Errorf("upstream refuses the configuration: %v", err)
			}
			versioned := &kubeletv1beta1.KubeletConfiguration{}
			if err := scheme.Convert(&s.KubeletConfiguration, versioned, nil); err != nil {
				t.Fatal(err)
			}
			versioned.SetGroupVersionKind(kubeletv1beta1.SchemeGroupVersion.WithKind("KubeletConfiguration"))
			var got bytes.Buffer
			if err := yaml.Encode(runtime.Object(versioned), &got); err != nil {
				t.Fatal(err)
			}
			testutil.Golden(t, name+".yaml", got.String())
		})
	}
}

func TestMemoryReserve(t *testing.T) {
	for capacity, want := range map[uint64]uint64{1 << 30: 64 << 20, 4 << 30: 4 << 30 / 20, 1 << 40: 512 << 20} {
		if got := memoryReserve(capacity); got != want {
			t.Errorf("memoryReserve(%d) = %d, want %d", capacity, got, want)
		}
	}
}
