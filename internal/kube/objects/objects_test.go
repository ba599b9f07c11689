package objects

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	"k8s.io/utils/ptr"

	"berth.dev/berth/internal/kube/savedstate"
)

func record(t testing.TB, key string, object runtime.Object) savedstate.Record {
	t.Helper()
	r, err := encode(key, object)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name, UID: "1-2-3"}
}

func find[T runtime.Object](t *testing.T, records []savedstate.Record, key string) T {
	t.Helper()
	i := slices.IndexFunc(records, func(r savedstate.Record) bool { return r.Key == key })
	if i < 0 {
		t.Fatalf("no %s in %v", key, keysOf(records))
	}
	object, err := decode[T](records[i])
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func keysOf(records []savedstate.Record) []string {
	var keys []string
	for _, r := range records {
		keys = append(keys, r.Key)
	}
	return keys
}

// Nodes of other jobs may return to the next cluster, with their pods and volumes. If they do not,
// the next cluster removes them.
func TestNodesThatStayKeepTheirPodsAndVolumes(t *testing.T) {
	pod := func(name, node string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"}}
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "j", Controller: ptr.To(true)}}
		return p
	}
	bare := pod("bare", "n2-57")
	bare.OwnerReferences = nil
	volume := func(name, node string) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: provisioner}}}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}}
		return v
	}
	claim := func(name, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: meta(name), Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}}
	}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: meta("s")}
	slice.Labels = map[string]string{discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}
	kept := []string{
		"csinodes/n2-57", "endpointslices/default/s", "minions/n2-57",
		"persistentvolumeclaims/default/here", "persistentvolumeclaims/default/there", "persistentvolumes/there", "pods/default/bare", "pods/default/there",
	}
	all := []savedstate.Record{
		record(t, "csinodes/n1", &corev1.Node{ObjectMeta: meta("n1")}), record(t, "csinodes/n2-57", &corev1.Node{ObjectMeta: meta("n2-57")}),
		record(t, "endpointslices/default/kubernetes", slice), record(t, "endpointslices/default/s", slice),
		record(t, "minions/n1", &corev1.Node{ObjectMeta: meta("n1")}), record(t, "minions/n2-57", &corev1.Node{ObjectMeta: meta("n2-57")}),
		record(t, "persistentvolumeclaims/default/here", claim("here", "here")), record(t, "persistentvolumeclaims/default/there", claim("there", "there")),
		record(t, "persistentvolumes/here", volume("here", "n1")), record(t, "persistentvolumes/there", volume("there", "n2-57")),
		record(t, "pods/default/bare", bare), record(t, "pods/default/here", pod("here", "n1")), record(t, "pods/default/there", pod("there", "n2-57")),
	}
	lasting, err := Lasting(all, func(node string) bool { return node != "n1" })
	if err != nil {
		t.Fatal(err)
	}
	if got := keysOf(lasting); !slices.Equal(got, kept) {
		t.Errorf("kept %v, want %v", got, kept)
	}
	if p := find[*corev1.Pod](t, lasting, "pods/default/there"); p.Spec.NodeName != "n2-57" || p.Status.PodIP == "" {
		t.Errorf("the pod of a node that stays is %+v", p)
	}
	if c := find[*corev1.PersistentVolumeClaim](t, lasting, "persistentvolumeclaims/default/there"); c.Spec.VolumeName != "there" {
		t.Errorf("a claim on a node that stays has the volume %q", c.Spec.VolumeName)
	}
	if lasting, err = Lasting(lasting, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := keysOf(lasting), []string{"persistentvolumeclaims/default/here", "persistentvolumeclaims/default/there", "pods/default/bare"}; !slices.Equal(got, want) {
		t.Errorf("without the nodes: %v, want %v", got, want)
	}
	if p := find[*corev1.Pod](t, lasting, "pods/default/bare"); p.Spec.NodeName != "" || p.Status.Phase != corev1.PodPending {
		t.Errorf("a bare pod without its node is %+v", p)
	}
}

func TestNodeObjectsAndKeysAreNotSaved(t *testing.T) {
	owned := &corev1.Pod{ObjectMeta: meta("owned"), Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	owned.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "j", Controller: ptr.To(true)}}
	ending := &corev1.Pod{ObjectMeta: meta("ending")}
	ending.DeletionTimestamp = ptr.To(metav1.Now())
	slice := func(manager string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: meta("s")}
		s.Labels = map[string]string{discoveryv1.LabelManagedBy: manager}
		return s
	}
	all := []savedstate.Record{
		record(t, "minions/n1", &corev1.Node{ObjectMeta: meta("n1")}),
		record(t, "leases/kube-node-lease/n1", &corev1.ConfigMap{}),
		record(t, "events/default/e", &corev1.Event{ObjectMeta: meta("e")}),
		record(t, "configmaps/default/kube-root-ca.crt", &corev1.ConfigMap{ObjectMeta: meta("kube-root-ca.crt")}),
		record(t, "configmaps/kube-system/extension-apiserver-authentication", &corev1.ConfigMap{}),
		record(t, "services/specs/default/kubernetes", &corev1.Service{ObjectMeta: meta("kubernetes")}),
		record(t, "services/endpoints/default/web", &corev1.Endpoints{ObjectMeta: meta("web")}), //nolint:staticcheck // it is still stored
		record(t, "endpointslices/default/auto", slice("endpointslice-controller.k8s.io")),
		record(t, "pods/default/owned", owned),
		record(t, "pods/default/ending", ending),
		record(t, "secrets/kube-system/bootstrap", &corev1.Secret{ObjectMeta: meta("b"), Type: corev1.SecretTypeBootstrapToken}),
		{Key: "apiregistration.k8s.io/apiservices/v1.apps", Value: []byte(`{"labels":{"kube-aggregator.kubernetes.io/automanaged":"onstart"}}`)},
		// The following records outlive the cluster.
		record(t, "configmaps/default/mine", &corev1.ConfigMap{ObjectMeta: meta("mine")}),
		record(t, "endpointslices/default/own", slice("me")),
		record(t, "jobs/default/j", &batchv1.Job{ObjectMeta: meta("j")}),
		record(t, "pods/default/bare", &corev1.Pod{ObjectMeta: meta("bare"), Spec: corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable, PodIP: "10.0.0.1"}}),
		record(t, "pods/default/done", &corev1.Pod{ObjectMeta: meta("done"), Spec: corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{Phase: corev1.PodSucceeded, PodIP: "10.0.0.2"}}),
		record(t, "secrets/default/token", &corev1.Secret{ObjectMeta: meta("token"), Type: corev1.SecretTypeServiceAccountToken, Data: map[string][]byte{"token": []byte("signed")}}),
		record(t, "secrets/default/mine", &corev1.Secret{ObjectMeta: meta("mine"), Data: map[string][]byte{"a": []byte("b")}}),
		{Key: "example.org/things/default/t", Value: []byte(`{"kind":"Thing"}`)},
	}
	lasting, err := Lasting(all, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := keysOf(all[12:]); !slices.Equal(keysOf(lasting), want) {
		t.Errorf("%v last, want %v", keysOf(lasting), want)
	}
	bare := find[*corev1.Pod](t, lasting, "pods/default/bare")
	if bare.Spec.NodeName != "" || bare.Status.Phase != corev1.PodPending || bare.Status.PodIP != "" || bare.Status.QOSClass != corev1.PodQOSBurstable || bare.UID != "1-2-3" {
		t.Errorf("a bare pod begins again as %+v", bare)
	}
	if done := find[*corev1.Pod](t, lasting, "pods/default/done"); done.Spec.NodeName != "" || done.Status.Phase != corev1.PodSucceeded {
		t.Errorf("a pod that has ended is %+v", done)
	}
	if token := find[*corev1.Secret](t, lasting, "secrets/default/token"); len(token.Data) != 0 {
		t.Errorf("a token is kept: %v", token.Data)
	}
	if mine := find[*corev1.Secret](t, lasting, "secrets/default/mine"); string(mine.Data["a"]) != "b" {
		t.Errorf("a Secret is lost: %v", mine.Data)
	}
}

func TestClaimsLoseVolumesOfNodes(t *testing.T) {
	volume := func(name, by string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: by}}}
	}
	claim := func(name, volume string) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: meta(name), Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
		c.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "n1", "mine": "yes"}
		return c
	}
	lasting, err := Lasting([]savedstate.Record{
		record(t, "persistentvolumeclaims/default/local", claim("local", "pv-local")),
		record(t, "persistentvolumeclaims/default/shared", claim("shared", "pv-shared")),
		record(t, "persistentvolumes/pv-local", volume("pv-local", provisioner)),
		record(t, "persistentvolumes/pv-shared", volume("pv-shared", "berth.dev/shared")),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	local := find[*corev1.PersistentVolumeClaim](t, lasting, "persistentvolumeclaims/default/local")
	if local.Spec.VolumeName != "" || local.Status.Phase != corev1.ClaimPending || len(local.Annotations) != 2 || local.Annotations["mine"] == "" {
		t.Errorf("a claim on a node's volume: %+v", local)
	}
	shared := find[*corev1.PersistentVolumeClaim](t, lasting, "persistentvolumeclaims/default/shared")
	if shared.Spec.VolumeName != "pv-shared" || shared.Status.Phase != corev1.ClaimBound || shared.Annotations["pv.kubernetes.io/bind-completed"] == "" {
		t.Errorf("a claim on a shared volume: %+v", shared)
	}
	if keys := keysOf(lasting); slices.Contains(keys, "persistentvolumes/pv-local") || !slices.Contains(keys, "persistentvolumes/pv-shared") {
		t.Errorf("these last: %v", keys)
	}
	_, notices, err := Moved(lasting, nil, nil)
	if err != nil || len(notices) != 1 || !strings.Contains(notices[0], "default/local") || strings.Contains(notices[0], "default/shared") {
		t.Errorf("notices %q, %v", notices, err)
	}
}

func TestServicesMoveToOtherAddresses(t *testing.T) {
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	service := func(addresses ...string) *corev1.Service {
		s := &corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{ClusterIP: addresses[0], ClusterIPs: addresses, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyPreferDualStack)}}
		for _, address := range addresses {
			family := corev1.IPv4Protocol
			if strings.Contains(address, ":") {
				family = corev1.IPv6Protocol
			}
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, family)
		}
		return s
	}
	from := prefixes("10.2.0.0/16", "fd00:1::/112")
	for name, c := range map[string]struct {
		service *corev1.Service
		to      []netip.Prefix
		want    []string
	}{
		"the same ranges":  {service("10.2.3.4", "fd00:1::5"), from, []string{"10.2.3.4", "fd00:1::5"}},
		"other ranges":     {service("10.2.3.4", "fd00:1::5"), prefixes("100.66.0.0/16", "fd00:2::/112"), []string{"100.66.3.4", "fd00:2::5"}},
		"one family less":  {service("fd00:1::5", "10.2.3.4"), prefixes("100.66.0.0/16"), []string{"100.66.3.4"}},
		"its family is no": {service("fd00:1::5"), prefixes("100.66.0.0/16"), nil},
		"headless":         {service("None"), prefixes("100.66.0.0/16"), []string{"None"}},
	} {
		t.Run(name, func(t *testing.T) {
			moved, notices, err := Moved([]savedstate.Record{record(t, "services/specs/default/web", c.service)}, from, c.to)
			if err != nil {
				t.Fatal(err)
			}
			if c.want == nil {
				if len(moved) != 0 || len(notices) != 1 {
					t.Errorf("moved %v, notices %q", keysOf(moved), notices)
				}
				return
			}
			got := find[*corev1.Service](t, moved, "services/specs/default/web")
			if !slices.Equal(got.Spec.ClusterIPs, c.want) || got.Spec.ClusterIP != c.want[0] || len(got.Spec.IPFamilies) != len(c.want) {
				t.Errorf("addresses %v of %v, want %v", got.Spec.ClusterIPs, got.Spec.IPFamilies, c.want)
			}
			taken := len(c.want)
			if c.want[0] == "None" {
				taken = 0
			}
			if len(moved) != 1+taken {
				t.Errorf("moved %v", keysOf(moved))
			}
		})
	}
}
