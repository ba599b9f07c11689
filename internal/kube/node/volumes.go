package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"berth.dev/berth/internal/base/cluster"
)

// provisionerName is the provisioner that a StorageClass names to get volumes on
// a node's own disk. Such a class must bind at the first consumer.
const provisionerName = "berth.dev/local"

// annotationCapacity is on each volume, because a directory has no size.
const annotationCapacity = "berth.dev/capacity"

// volumes provisions directories of this node as persistent volumes. They
// live as long as the cluster.
type volumes struct{ node, dir string }

// runVolumes runs the controllers of all volumes until ctx ends.
func runVolumes(ctx context.Context, plan cluster.Plan, api *access, log *slog.Logger) error {
	own := &volumes{node: plan.Node.Name, dir: plan.Paths.Volumes()}
	if err := os.MkdirAll(own.dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of volumes: %w", err)
	}
	readable := func(ctx context.Context, client kubernetes.Interface) error {
		_, err := client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return fmt.Errorf("read volume claims as the provisioner: %w", err)
		}
		return nil
	}
	// Do not fail: a node without provisioned volumes is better than no node.
	for err := api.open(ctx, readable); err != nil; err = api.open(ctx, readable) {
		if ctx.Err() != nil {
			return nil
		}
		log.Error("No volumes can be provisioned", "error", err)
	}
	provisioners := map[string]controller.Provisioner{provisionerName: own}
	// Several nodes may provision shared volumes, because a volume's name depends only on
	// its claim.
	if plan.SharedVolumes != "" && plan.Control() {
		provisioners[cluster.SharedProvisioner] = sharedVolumes{plan.SharedVolumes}
	}
	var running sync.WaitGroup
	for name, provisioner := range provisioners {
		// One node is responsible for each claim: no election.
		c := controller.NewProvisionController(ctx, api.client, name, provisioner,
			controller.LeaderElection(false), controller.MetricsPort(0))
		running.Go(func() { c.Run(ctx) })
	}
	running.Wait()
	return nil
}

// errNoBlock is the error for claims with volumeMode Block.
var errNoBlock = errors.New("provision a block volume: only volumeMode Filesystem is possible here")

// ShouldProvision reports whether the scheduler has selected this node for the claim.
func (v *volumes) ShouldProvision(_ context.Context, claim *v1.PersistentVolumeClaim) bool {
	return claim.Annotations[volume.AnnSelectedNode] == v.node
}

// ShouldDelete reports whether this node made the volume.
func (v *volumes) ShouldDelete(_ context.Context, pv *v1.PersistentVolume) bool {
	_, err := v.path(pv)
	return err == nil
}

// Provision makes a directory. Every user may write to it, because the user of the pod is
// unknown. Pods reach the directory only through the volume.
func (v *volumes) Provision(_ context.Context, o controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	if m := o.PVC.Spec.VolumeMode; m != nil && *m == v1.PersistentVolumeBlock {
		return nil, controller.ProvisioningFinished, errNoBlock
	}
	path := filepath.Join(v.dir, o.PVName)
	if err := os.Mkdir(path, 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, controller.ProvisioningFinished, fmt.Errorf("make volume %s: %w", o.PVName, err)
	}
	if err := os.Chmod(path, 0o777); err != nil { // whatever the umask is
		return nil, controller.ProvisioningFinished, fmt.Errorf("make volume %s: %w", o.PVName, err)
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        o.PVName,
			Annotations: map[string]string{annotationCapacity: "not enforced"},
		},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:            o.PVC.Spec.AccessModes,
			Capacity:               v1.ResourceList{v1.ResourceStorage: o.PVC.Spec.Resources.Requests[v1.ResourceStorage]},
			VolumeMode:             o.PVC.Spec.VolumeMode,
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{
					Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{v.node},
				}},
			}}}},
		},
	}
	if c := o.StorageClass; c != nil {
		pv.Spec.MountOptions = c.MountOptions
		if c.ReclaimPolicy != nil {
			pv.Spec.PersistentVolumeReclaimPolicy = *c.ReclaimPolicy
		}
	}
	return pv, controller.ProvisioningFinished, nil
}

// Delete removes the directory of a volume with its content.
func (v *volumes) Delete(_ context.Context, pv *v1.PersistentVolume) error {
	path, err := v.path(pv)
	if err != nil {
		return &controller.IgnoredError{Reason: err.Error()}
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("delete volume %s: %w", pv.Name, err)
	}
	return nil
}

// path returns the directory of a volume of this node. It trusts nothing but
// the name: whoever may edit volumes must not be able to have a path deleted.
func (v *volumes) path(pv *v1.PersistentVolume) (string, error) {
	path := filepath.Join(v.dir, pv.Name)
	if filepath.Dir(path) != filepath.Clean(v.dir) || pv.Spec.Local == nil || pv.Spec.Local.Path != path {
		return "", fmt.Errorf("volume %s is not one of %s", pv.Name, v.dir)
	}
	a := pv.Spec.NodeAffinity
	if a == nil || a.Required == nil {
		return "", fmt.Errorf("volume %s has no node", pv.Name)
	}
	for _, term := range a.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == v1.LabelHostname && e.Operator == v1.NodeSelectorOpIn && len(e.Values) == 1 && e.Values[0] == v.node {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("volume %s belongs to another node", pv.Name)
}
