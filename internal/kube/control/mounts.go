package control

import (
	"context"
	"fmt"
	"io"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/apis/core"

	"berth.dev/berth/internal/base/cluster"
)

// folderMounts adds the folders of --mount to every pod at its creation, so that
// 'kubectl describe pod' shows them and a kubelet that lacks one reports an
// event. Rejected alternatives: mounts by the shim, which would do both
// silently, and a policy object, which could be deleted and does not exist yet
// for the first pods.
type folderMounts struct {
	*admission.Handler
	mounts []cluster.FolderMount
}

const folderMountsPlugin = "BerthFolderMounts"

// addFolderMounts adds the admission plugin to kube-apiserver if there are folders
// to mount. It comes first, so that other plugins see the final pod.
func addFolderMounts(opts *options.ServerRunOptions, mounts []cluster.FolderMount) {
	if len(mounts) == 0 {
		return
	}
	plugins := opts.Admission.GenericAdmission
	plugins.Plugins.Register(folderMountsPlugin, func(io.Reader) (admission.Interface, error) {
		return &folderMounts{admission.NewHandler(admission.Create), mounts}, nil
	})
	plugins.RecommendedPluginOrder = append([]string{folderMountsPlugin}, plugins.RecommendedPluginOrder...)
	plugins.EnablePlugins = append(plugins.EnablePlugins, folderMountsPlugin)
}

// Admit adds the volumes to a new pod, and mounts them in each container without a mount at
// the same path.
func (f *folderMounts) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*core.Pod)
	if !ok || a.GetResource().GroupResource() != core.Resource("pods") || a.GetSubresource() != "" {
		return nil
	}
	for i, mount := range f.mounts {
		volume := fmt.Sprintf("berth-mount-%d", i)
		if slices.ContainsFunc(pod.Spec.Volumes, func(v core.Volume) bool { return v.Name == volume }) {
			continue // the manifest is a copy of a pod that has the volumes
		}
		used := false
		for _, containers := range [][]core.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for j := range containers {
				c := &containers[j]
				if slices.ContainsFunc(c.VolumeMounts, func(m core.VolumeMount) bool { return m.MountPath == mount.Target }) {
					continue
				}
				used = true
				c.VolumeMounts = append(c.VolumeMounts, core.VolumeMount{Name: volume, MountPath: mount.Target, ReadOnly: mount.ReadOnly})
			}
		}
		if used {
			pod.Spec.Volumes = append(pod.Spec.Volumes, core.Volume{
				Name: volume, VolumeSource: core.VolumeSource{HostPath: &core.HostPathVolumeSource{Path: mount.Source}},
			})
		}
	}
	return nil
}
