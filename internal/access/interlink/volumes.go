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

// contents turns the ConfigMaps and Secrets of a request into objects of the pod.
type contents struct {
	to *translation
	// configMaps and secrets hold the sent objects by foreign name, projected the
	// files of projected volumes by the name of the volume.
	configMaps map[string]*corev1.ConfigMap
	secrets    map[string]*corev1.Secret
	projected  map[string]*corev1.ConfigMap
	// made maps the kind and foreign name to the name here.
	made map[string]string
	// dropped holds the volumes that this cluster does without.
	dropped map[string]bool
}

func newContents(request createRequest, to *translation) *contents {
	c := &contents{
		to:         to,
		configMaps: map[string]*corev1.ConfigMap{},
		secrets:    map[string]*corev1.Secret{},
		projected:  map[string]*corev1.ConfigMap{},
		made:       map[string]string{},
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

// objectMeta returns the metadata for the next object of the pod.
func (c *contents) objectMeta() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: c.to.pod.Namespace,
		Name:      c.to.pod.Name + "-" + strconv.Itoa(len(c.to.configMaps)+len(c.to.secrets)),
		Labels:    map[string]string{labelUID: c.to.pod.Labels[labelUID]},
	}
}

// configMap returns the name of the object with the contents of a ConfigMap. ok is
// false if the ConfigMap was not sent.
func (c *contents) configMap(foreign string) (name string, ok bool) {
	key := "configmap/" + foreign
	if name, ok = c.made[key]; ok {
		return name, true
	}
	sent := c.configMaps[foreign]
	if sent == nil {
		return "", false
	}
	object := corev1.ConfigMap{ObjectMeta: c.objectMeta(), Data: sent.Data, BinaryData: sent.BinaryData}
	c.to.configMaps = append(c.to.configMaps, object)
	c.made[key] = object.Name
	return object.Name, true
}

// secret works like configMap. The type of a Secret is not kept: some types make
// controllers act on it.
func (c *contents) secret(foreign string) (name string, ok bool) {
	key := "secret/" + foreign
	if name, ok = c.made[key]; ok {
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
	c.made[key] = c.addSecret(data)
	return c.made[key], true
}

func (c *contents) addSecret(data map[string][]byte) string {
	object := corev1.Secret{ObjectMeta: c.objectMeta(), Data: data}
	c.to.secrets = append(c.to.secrets, object)
	return object.Name
}

// volumes adds the volumes that containers mount. interLink sends no contents of
// others.
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

// errClaim is the error for volumes whose data is in the other cluster.
var errClaim = errors.New("interLink sends no data of claims and of storage in the other cluster; copy the data in an init container, or mount a folder of the site with 'berth up --mount'")

// source returns a volume's source in this cluster, or nil if the pod does without the
// volume.
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
		return &corev1.VolumeSource{DownwardAPI: volume.DownwardAPI}, nil // from before 0.6.2, which sends its contents
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
	return nil, errClaim
}

func optional(value *bool) bool { return value != nil && *value }

// tokenVolume begins the names of the volumes that Kubernetes adds to pods for the
// token of their service account.
const tokenVolume = "kube-api-access-"

// project returns a projected volume with the sent files. They are in Secrets, because a
// token of a service account may be among them. A file that the request lacks comes
// from this cluster if the downward API has it here, too.
func (c *contents) project(volume corev1.Volume, content *corev1.ConfigMap) (*corev1.VolumeSource, error) {
	spec := volume.Projected
	if spec == nil {
		spec = &corev1.ProjectedVolumeSource{
			DefaultMode: volume.DownwardAPI.DefaultMode,
			Sources:     []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{Items: volume.DownwardAPI.Items}}},
		}
	}
	modes := map[string]*int32{}
	var own []corev1.DownwardAPIVolumeFile
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
					own = append(own, item)
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
			key := strconv.Itoa(i) // a path may have characters that a key may not
			data[key] = []byte(content.Data[path])
			secret.Items = append(secret.Items, corev1.KeyToPath{Key: key, Path: path, Mode: modes[path]})
		}
		secret.Name = c.addSecret(data)
		projected.Sources = append(projected.Sources, corev1.VolumeProjection{Secret: secret})
	}
	if len(own) > 0 {
		projected.Sources = append(projected.Sources, corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: own}})
	}
	return &corev1.VolumeSource{Projected: projected}, nil
}

// portions divides the paths of files into groups that fit into a Secret each. The
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
