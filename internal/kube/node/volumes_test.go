package node

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

func claim() *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("3Gi")}},
	}}
}

func TestVolumeLifecycle(t *testing.T) {
	v := &volumes{node: "n1", dir: t.TempDir()}
	o := controller.ProvisionOptions{
		PVName: "pvc-1", PVC: claim(), SelectedNodeName: "n1",
		StorageClass: &storagev1.StorageClass{ReclaimPolicy: ptr.To(v1.PersistentVolumeReclaimRetain)},
	}
	for range 2 { // a lost answer makes the controller ask again
		if _, _, err := v.Provision(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	pv, state, err := v.Provision(t.Context(), o)
	if err != nil || state != controller.ProvisioningFinished {
		t.Fatal(state, err)
	}
	info, err := os.Stat(pv.Spec.Local.Path)
	if err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("directory: %v, %v", info, err)
	}
	if pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimRetain || pv.Spec.Capacity.Storage().String() != "3Gi" || pv.Annotations[annotationCapacity] == "" {
		t.Errorf("volume: %+v", pv)
	}
	if err := os.WriteFile(filepath.Join(pv.Spec.Local.Path, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !v.ShouldDelete(t.Context(), pv) {
		t.Error("does not know its own volume")
	}
	if err := v.Delete(t.Context(), pv); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(v.dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestOnlyOwnVolumesAreDeleted(t *testing.T) {
	outside := t.TempDir()
	v := &volumes{node: "n1", dir: filepath.Join(t.TempDir(), "volumes")}
	if err := os.Mkdir(v.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	make := func(name string) *v1.PersistentVolume {
		t.Helper()
		pv, _, err := v.Provision(t.Context(), controller.ProvisionOptions{PVName: name, PVC: claim()})
		if err != nil {
			t.Fatal(err)
		}
		return pv
	}
	elsewhere, foreign, parent, homeless := make("a"), make("b"), make("c"), make("d")
	elsewhere.Spec.Local.Path = outside
	foreign.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{"n2"}
	parent.Name, parent.Spec.Local.Path = "..", filepath.Dir(v.dir)
	homeless.Spec.NodeAffinity = nil
	for _, pv := range []*v1.PersistentVolume{elsewhere, foreign, parent, homeless, {}} {
		var ignored *controller.IgnoredError
		if err := v.Delete(t.Context(), pv); !errors.As(err, &ignored) || v.ShouldDelete(t.Context(), pv) {
			t.Errorf("volume %+v: %v", pv.Spec.Local, err)
		}
	}
	if left, _ := os.ReadDir(v.dir); len(left) != 4 {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
}

func TestOnlyClaimsOfThisNode(t *testing.T) {
	v := &volumes{node: "n1"}
	for node, want := range map[string]bool{"n1": true, "n2": false, "": false} {
		c := claim()
		c.ObjectMeta = metav1.ObjectMeta{Annotations: map[string]string{volume.AnnSelectedNode: node}}
		if got := v.ShouldProvision(t.Context(), c); got != want {
			t.Errorf("node %q: %v", node, got)
		}
	}
	block := claim()
	block.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	if _, _, err := v.Provision(t.Context(), controller.ProvisionOptions{PVName: "x", PVC: block}); err == nil {
		t.Error("made a block volume")
	}
}

func TestSharedVolumeIsReusedAndKept(t *testing.T) {
	s := sharedVolumes{t.TempDir()}
	asked := claim()
	asked.Namespace, asked.Name = "team", "data"
	asked.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	path := filepath.Join(s.dir, "team", "data")
	for _, name := range []string{"pvc-1", "pvc-2"} { // of two runs
		pv, _, err := s.Provision(t.Context(), controller.ProvisionOptions{PVName: name, PVC: asked})
		if err != nil {
			t.Fatal(err)
		}
		if pv.Spec.HostPath.Path != path || pv.Spec.NodeAffinity != nil || pv.Spec.AccessModes[0] != v1.ReadWriteMany {
			t.Errorf("volume: %+v", pv.Spec)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o777 {
			t.Errorf("directory: %v, %v", info, err)
		}
		if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("its parent: %v, %v", info, err)
		}
		var ignored *controller.IgnoredError
		if err := s.Delete(t.Context(), pv); !errors.As(err, &ignored) {
			t.Errorf("delete: %v", err)
		}
	}
	asked.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	if _, _, err := s.Provision(t.Context(), controller.ProvisionOptions{PVName: "pvc-3", PVC: asked}); err == nil {
		t.Error("a block volume was made")
	}
}
