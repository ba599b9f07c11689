package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// sharedVolumes provisions directories in a folder that all nodes see. Only the
// head runs it. The directories belong to the user: their content outlives the
// cluster, and a claim of the same name in the same namespace finds it again.
type sharedVolumes struct{ dir string }

// Provision makes a directory, or finds it. Anybody may write to it, because
// the pod's user is not known; its parent keeps other users of the host out.
func (s sharedVolumes) Provision(_ context.Context, o controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	if m := o.PVC.Spec.VolumeMode; m != nil && *m == v1.PersistentVolumeBlock {
		return nil, controller.ProvisioningFinished, errNoBlock
	}
	parent := filepath.Join(s.dir, o.PVC.Namespace)
	path := filepath.Join(parent, o.PVC.Name)
	// The API server has checked both names: they are single parts of a path.
	if err := os.Mkdir(parent, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, controller.ProvisioningFinished, fmt.Errorf("make shared volume: %w", err)
	}
	err := os.Mkdir(path, 0o777)
	if err == nil {
		err = os.Chmod(path, 0o777) // whatever the umask is
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, controller.ProvisioningFinished, fmt.Errorf("make shared volume: %w", err)
	}
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName, Annotations: map[string]string{annotationCapacity: "not enforced"}},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:                   o.PVC.Spec.AccessModes,
			Capacity:                      v1.ResourceList{v1.ResourceStorage: o.PVC.Spec.Resources.Requests[v1.ResourceStorage]},
			VolumeMode:                    o.PVC.Spec.VolumeMode,
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{
				Path: path, Type: new(v1.HostPathDirectory),
			}},
		},
	}, controller.ProvisioningFinished, nil
}

// Delete keeps the user's data.
func (s sharedVolumes) Delete(_ context.Context, pv *v1.PersistentVolume) error {
	return &controller.IgnoredError{Reason: "volume " + pv.Name + " is kept"}
}
