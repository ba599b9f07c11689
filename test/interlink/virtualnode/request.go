package virtualnode

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Create is the virtual node's request to /create.
type Create struct {
	Pod              corev1.Pod         `json:"pod"`
	ConfigMaps       []corev1.ConfigMap `json:"configmaps"`
	Secrets          []corev1.Secret    `json:"secrets"`
	ProjectedVolumes []corev1.ConfigMap `json:"projectedvolumesmaps"`
	JobScriptURL     string             `json:"jobscriptURL"`
}

// PluginCreate is the API server's request to the plugin's /create.
type PluginCreate struct {
	Pod        corev1.Pod  `json:"pod"`
	Containers []Container `json:"container"`
	JobConfig  struct{}    `json:"jobConfig"`
}

// Container holds the contents of the volumes of one container.
type Container struct {
	Name             string             `json:"name"`
	ConfigMaps       []corev1.ConfigMap `json:"configMaps"`
	ProjectedVolumes []corev1.ConfigMap `json:"projectedvolumemaps"`
	Secrets          []corev1.Secret    `json:"secrets"`
	EmptyDirs        []string           `json:"emptyDirs"`
}

// Created is the reply to /create.
type Created struct{ PodUID, PodJID string }

// Objects holds the ConfigMaps and Secrets of the pod's namespace by name.
type Objects struct {
	ConfigMaps map[string]corev1.ConfigMap
	Secrets    map[string]corev1.Secret
}

// AddToken mounts the token of a service account into all containers, as the API server of
// Kubernetes does.
func (o Objects) AddToken(pod *corev1.Pod) {
	const name = "kube-api-access-x7k2p"
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
			}}},
		},
	}}})
	mount := corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			containers[i].VolumeMounts = append(containers[i].VolumeMounts, mount)
		}
	}
}

// Request returns the virtual node's request to /create. It returns an error if an object of a
// volume is not in o.
func (o Objects) Request(pod *corev1.Pod) (Create, error) {
	request := Create{Pod: *pod.DeepCopy()}
	for _, volume := range pod.Spec.Volumes {
		switch {
		case volume.ConfigMap != nil:
			content, ok := o.ConfigMaps[volume.ConfigMap.Name]
			if !ok {
				return request, fmt.Errorf("there is no ConfigMap %s", volume.ConfigMap.Name)
			}
			request.ConfigMaps = append(request.ConfigMaps, content)
		case volume.Secret != nil:
			content, ok := o.Secrets[volume.Secret.SecretName]
			if !ok {
				return request, fmt.Errorf("there is no Secret %s", volume.Secret.SecretName)
			}
			request.Secrets = append(request.Secrets, content)
		case volume.Projected != nil:
			content := corev1.ConfigMap{Data: map[string]string{}}
			content.Name = volume.Name
			for _, source := range volume.Projected.Sources {
				if err := o.project(pod, source, content.Data); err != nil {
					return request, err
				}
			}
			request.ProjectedVolumes = append(request.ProjectedVolumes, content)
		}
	}
	for _, containers := range [][]corev1.Container{request.Pod.Spec.InitContainers, request.Pod.Spec.Containers} {
		for i := range containers {
			o.resolve(pod, &containers[i])
		}
	}
	return request, nil
}

// project adds the files of one source of a projected volume to files. Like interLink, it
// omits Secrets.
func (o Objects) project(pod *corev1.Pod, source corev1.VolumeProjection, files map[string]string) error {
	switch {
	case source.ServiceAccountToken != nil:
		files[source.ServiceAccountToken.Path] = "a.service.account-token"
	case source.ConfigMap != nil:
		content, ok := o.ConfigMaps[source.ConfigMap.Name]
		if !ok {
			return fmt.Errorf("there is no ConfigMap %s", source.ConfigMap.Name)
		}
		if len(source.ConfigMap.Items) == 0 {
			maps.Copy(files, content.Data)
		}
		for _, item := range source.ConfigMap.Items {
			files[item.Path] = content.Data[item.Key]
		}
	case source.DownwardAPI != nil:
		for _, item := range source.DownwardAPI.Items {
			if value, ok := field(pod, item.FieldRef); ok {
				files[item.Path] = value
			}
		}
	}
	return nil
}

// field returns the value of a field of the downward API that interLink knows.
func field(pod *corev1.Pod, ref *corev1.ObjectFieldSelector) (string, bool) {
	if ref == nil {
		return "", false
	}
	value, ok := map[string]string{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID),
		"spec.nodeName": pod.Spec.NodeName, "status.podIP": "127.0.0.1",
	}[ref.FieldPath]
	return value, ok
}

// resolve replaces references in the environment of a container by values. References that
// it does not know stay.
func (o Objects) resolve(pod *corev1.Pod, container *corev1.Container) {
	for i := range container.Env {
		from, value, ok := container.Env[i].ValueFrom, "", false
		switch {
		case from == nil:
		case from.FieldRef != nil:
			value, ok = field(pod, from.FieldRef)
		case from.ConfigMapKeyRef != nil:
			value, ok = o.ConfigMaps[from.ConfigMapKeyRef.Name].Data[from.ConfigMapKeyRef.Key]
		case from.SecretKeyRef != nil:
			var content []byte
			content, ok = o.Secrets[from.SecretKeyRef.Name].Data[from.SecretKeyRef.Key]
			value = string(content)
		}
		if ok {
			container.Env[i].Value, container.Env[i].ValueFrom = value, nil
		}
	}
	for _, source := range container.EnvFrom {
		values := map[string]string{}
		if source.ConfigMapRef != nil {
			maps.Copy(values, o.ConfigMaps[source.ConfigMapRef.Name].Data)
		}
		if source.SecretRef != nil {
			for key, value := range o.Secrets[source.SecretRef.Name].Data {
				values[key] = string(value)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			container.Env = append(container.Env, corev1.EnvVar{Name: source.Prefix + key, Value: values[key]})
		}
	}
	container.EnvFrom = nil
}

// ForPlugin returns the request that interLink's API server makes of the virtual node's.
func (c Create) ForPlugin() PluginCreate {
	plugin := PluginCreate{Pod: c.Pod}
	for _, container := range slices.Concat(c.Pod.Spec.InitContainers, c.Pod.Spec.Containers) {
		contents := Container{Name: container.Name}
		for _, mount := range container.VolumeMounts {
			at := slices.IndexFunc(c.Pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
			if at < 0 {
				continue
			}
			switch volume := c.Pod.Spec.Volumes[at]; {
			case volume.ConfigMap != nil:
				contents.ConfigMaps = append(contents.ConfigMaps, named(c.ConfigMaps, volume.ConfigMap.Name)...)
			case volume.Projected != nil:
				contents.ProjectedVolumes = append(contents.ProjectedVolumes, named(c.ProjectedVolumes, volume.Name)...)
			case volume.Secret != nil:
				for _, secret := range c.Secrets {
					if secret.Name == volume.Secret.SecretName {
						contents.Secrets = append(contents.Secrets, secret)
						break
					}
				}
			}
		}
		plugin.Containers = append(plugin.Containers, contents)
	}
	return plugin
}

// named returns the ConfigMap with a name as a list, which is empty if there is none.
func named(all []corev1.ConfigMap, name string) []corev1.ConfigMap {
	at := slices.IndexFunc(all, func(c corev1.ConfigMap) bool { return c.Name == name })
	if at < 0 {
		return nil
	}
	return all[at : at+1]
}
