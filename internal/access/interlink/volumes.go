package interlink

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// contents adds the ConfigMaps and Secrets of a request to a translation, as objects of the
// local pod.
type contents struct {
	to *translation
	// configMaps and secrets hold the objects of the request by foreign name. projected
	// holds the files of projected volumes by the name of the volume.
	configMaps map[string]*corev1.ConfigMap
	secrets    map[string]*corev1.Secret
	projected  map[string]*corev1.ConfigMap
	// localNames maps kind/NAME, with the foreign name, to the local name.
	localNames map[string]string
	// dropped holds the names of the volumes that the local pod does not get.
	dropped map[string]bool
}

func newContents(request createRequest, to *translation) *contents {
	c := &contents{
		to:         to,
		configMaps: map[string]*corev1.ConfigMap{},
		secrets:    map[string]*corev1.Secret{},
		projected:  map[string]*corev1.ConfigMap{},
		localNames: map[string]string{},
		dropped:    map[string]bool{},
	}
	for i := range request.ConfigMaps {
		c.configMaps[request.ConfigMaps[i].Name] = &request.ConfigMaps[i]
	}
	for i := range request.Secrets {
		c.secrets[request.Secrets[i].Name] = &request.Secrets[i]
	}
	for i := range request.ProjectedVolumes {
		c.projected[request.ProjectedVolumes[i].Name] = &request.ProjectedVolumes[i]
	}
	return c
}

// objectMeta returns the metadata of the next object of the pod, with an unused name.
func (c *contents) objectMeta() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: c.to.pod.Namespace,
		Name:      c.to.pod.Name + "-" + strconv.Itoa(len(c.to.configMaps)+len(c.to.secrets)),
		Labels:    map[string]string{labelUID: c.to.pod.Labels[labelUID]},
	}
}

// configMap returns the local name of a ConfigMap, and adds the ConfigMap to the
// translation when it is first used. ok is false if the request does not contain it.
func (c *contents) configMap(foreign string) (name string, ok bool) {
	key := "configmap/" + foreign
	if name, ok = c.localNames[key]; ok {
		return name, true
	}
	sent := c.configMaps[foreign]
	if sent == nil {
		return "", false
	}
	object := corev1.ConfigMap{ObjectMeta: c.objectMeta(), Data: sent.Data, BinaryData: sent.BinaryData}
	c.to.configMaps = append(c.to.configMaps, object)
	c.localNames[key] = object.Name
	return object.Name, true
}

// secret works like configMap, for Secrets. The local Secret has the type Opaque,
// because controllers act on Secrets of some other types.
func (c *contents) secret(foreign string) (name string, ok bool) {
	key := "secret/" + foreign
	if name, ok = c.localNames[key]; ok {
		return name, true
	}
	sent := c.secrets[foreign]
	if sent == nil {
		return "", false
	}
	data := maps.Clone(sent.Data)
	for key, value := range sent.StringData {
		if data == nil {
			data = map[string][]byte{}
		}
		data[key] = []byte(value)
	}
	c.localNames[key] = c.addSecret(data)
	return c.localNames[key], true
}

// addSecret adds a Secret to the translation, and returns its name.
func (c *contents) addSecret(data map[string][]byte) string {
	object := corev1.Secret{ObjectMeta: c.objectMeta(), Data: data}
	c.to.secrets = append(c.to.secrets, object)
	return object.Name
}

// volumes adds the volumes that containers mount. interLink does not send the contents
// of other volumes. The error names the volume that the local pod cannot have.
func (c *contents) volumes(foreign []corev1.Volume) error {
	mounted := map[string]bool{}
	for _, containers := range [][]corev1.Container{c.to.pod.Spec.InitContainers, c.to.pod.Spec.Containers} {
		for _, container := range containers {
			for _, mount := range container.VolumeMounts {
				mounted[mount.Name] = true
			}
			for _, device := range container.VolumeDevices {
				mounted[device.Name] = true
			}
		}
	}
	for _, volume := range foreign {
		if !mounted[volume.Name] {
			continue
		}
		source, err := c.source(volume)
		if err != nil {
			return fmt.Errorf("volume %q: %w", volume.Name, err)
		}
		if source == nil {
			c.dropped[volume.Name] = true
			continue
		}
		c.to.pod.Spec.Volumes = append(c.to.pod.Spec.Volumes, corev1.Volume{Name: volume.Name, VolumeSource: *source})
	}
	return nil
}

// errForeignData is the error for volumes whose data is in the other cluster.
var errForeignData = errors.New("interLink does not send the data of claims and other storage; copy the data in an init container, or mount a folder of the site with 'berth up --mount'")

// source returns the source of a volume in the local pod, or nil if the pod does not
// get the volume.
func (c *contents) source(volume corev1.Volume) (*corev1.VolumeSource, error) {
	if content := c.projected[volume.Name]; content != nil && (volume.Projected != nil || volume.DownwardAPI != nil) {
		return c.project(volume, content)
	}
	switch {
	// The request may name several sources, so none is copied with the others.
	case volume.EmptyDir != nil:
		return &corev1.VolumeSource{EmptyDir: volume.EmptyDir}, nil
	case volume.Image != nil:
		return &corev1.VolumeSource{Image: volume.Image}, nil
	case volume.DownwardAPI != nil:
		return &corev1.VolumeSource{DownwardAPI: volume.DownwardAPI}, nil // interLink sends its contents since 0.6.2
	case volume.ConfigMap != nil:
		source := volume.ConfigMap.DeepCopy()
		name, ok := c.configMap(source.Name)
		if !ok && !optional(source.Optional) {
			return nil, fmt.Errorf("the request has no ConfigMap %q", source.Name)
		}
		if !ok {
			name = c.to.pod.Name + "-absent"
		}
		source.Name = name
		return &corev1.VolumeSource{ConfigMap: source}, nil
	case volume.Secret != nil:
		source := volume.Secret.DeepCopy()
		name, ok := c.secret(source.SecretName)
		if !ok && !optional(source.Optional) {
			return nil, fmt.Errorf("the request has no Secret %q", source.SecretName)
		}
		if !ok {
			name = c.to.pod.Name + "-absent"
		}
		source.SecretName = name
		return &corev1.VolumeSource{Secret: source}, nil
	case volume.Projected != nil && strings.HasPrefix(volume.Name, tokenVolume):
		return nil, nil
	case volume.Projected != nil:
		return nil, errors.New("the request has no contents of this projected volume; interLink's option DisableProjectedVolumes suppresses them")
	case volume.HostPath != nil:
		return nil, errors.New("a hostPath would be a folder of this site; use an emptyDir")
	}
	return nil, errForeignData
}

// optional returns the value of a field "optional", which is false by default.
func optional(value *bool) bool { return value != nil && *value }

// tokenVolume is the prefix of the names of the volumes that Kubernetes adds to pods
// for the token of their service account.
const tokenVolume = "kube-api-access-"

// project returns a projected volume with the files in content. The files are stored in
// Secrets, because one may be the token of a service account. Files of the downward API
// that interLink has not sent have the values of the local pod.
func (c *contents) project(volume corev1.Volume, content *corev1.ConfigMap) (*corev1.VolumeSource, error) {
	spec := volume.Projected
	if spec == nil {
		spec = &corev1.ProjectedVolumeSource{
			DefaultMode: volume.DownwardAPI.DefaultMode,
			Sources:     []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{Items: volume.DownwardAPI.Items}}},
		}
	}
	modes := map[string]*int32{}
	var local []corev1.DownwardAPIVolumeFile
	for _, source := range spec.Sources {
		switch {
		case source.ConfigMap != nil:
			for _, item := range source.ConfigMap.Items {
				modes[item.Path] = item.Mode
			}
		case source.DownwardAPI != nil:
			for _, item := range source.DownwardAPI.Items {
				modes[item.Path] = item.Mode
				if _, sent := content.Data[item.Path]; !sent {
					local = append(local, item)
				}
			}
		case source.Secret != nil && !optional(source.Secret.Optional):
			return nil, fmt.Errorf("interLink does not send the Secret %q of a projected volume; mount it as a secret volume", source.Secret.Name)
		case source.ClusterTrustBundle != nil && !optional(source.ClusterTrustBundle.Optional), source.PodCertificate != nil:
			return nil, errors.New("interLink sends no certificates of a projected volume")
		}
	}
	projected := &corev1.ProjectedVolumeSource{DefaultMode: spec.DefaultMode}
	for _, paths := range portions(content.Data) {
		data := map[string][]byte{}
		secret := &corev1.SecretProjection{}
		for i, path := range paths {
			key := strconv.Itoa(i) // unlike a path, a key must not contain a slash
			data[key] = []byte(content.Data[path])
			secret.Items = append(secret.Items, corev1.KeyToPath{Key: key, Path: path, Mode: modes[path]})
		}
		secret.Name = c.addSecret(data)
		projected.Sources = append(projected.Sources, corev1.VolumeProjection{Secret: secret})
	}
	if len(local) > 0 {
		projected.Sources = append(projected.Sources, corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: local}})
	}
	return &corev1.VolumeSource{Projected: projected}, nil
}

// portions divides the paths of files into groups whose files each fit into one Secret. The
// files of one volume may be from several ConfigMaps.
func portions(files map[string]string) (groups [][]string) {
	size := 0
	for _, path := range slices.Sorted(maps.Keys(files)) {
		size += len(files[path])
		if len(groups) == 0 || size > corev1.MaxSecretSize {
			groups = append(groups, nil)
			size = len(files[path])
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], path)
	}
	return groups
}

// dropMounts removes the mounts of dropped volumes.
func (c *contents) dropMounts(container *corev1.Container) {
	container.VolumeMounts = slices.DeleteFunc(container.VolumeMounts, func(mount corev1.VolumeMount) bool { return c.dropped[mount.Name] })
}
