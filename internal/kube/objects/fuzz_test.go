package objects

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth.dev/berth/internal/kube/savedstate"
	"berth.dev/berth/internal/testutil/fuzzbound"
)

// FuzzLasting reads two records of etcd, and moves what lasts to other addresses.
func FuzzLasting(f *testing.F) {
	service := &corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{
		ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7", "fd00::7"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
	}}
	volume := &corev1.PersistentVolume{ObjectMeta: meta("v")}
	volume.Annotations = map[string]string{provisionedBy: provisioner}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta("c"), Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v"}}
	var seeds [][]byte
	for _, object := range []runtime.Object{service, volume, claim} {
		seeds = append(seeds, record(f, "", object).Value)
	}
	f.Add("services/specs/default/web", seeds[0], "secrets/a/b", []byte(`{"kind":"Secret","apiVersion":"v1"}`))
	f.Add("persistentvolumes/v", seeds[1], "persistentvolumeclaims/default/c", seeds[2])
	f.Add("pods/default/a", []byte(`{"kind":"Pod","apiVersion":"v1"}`), "pods/", seeds[0])
	from := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00::/112")}
	to := []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}
	f.Fuzz(func(t *testing.T, key string, value []byte, key2 string, value2 []byte) {
		fuzzbound.Watch(t)
		lasting, err := Lasting([]savedstate.Record{{Key: key, Value: value}, {Key: key2, Value: value2}}, nil)
		if err != nil {
			return
		}
		if len(lasting) > 2 {
			t.Errorf("%d records last of 2", len(lasting))
		}
		moved, _, err := Moved(lasting, from, to)
		if err != nil {
			return
		}
		// They last again.
		if _, err := Lasting(moved, nil); err != nil {
			t.Error(err)
		}
	})
}
