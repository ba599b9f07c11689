package interlink

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// podWith returns a pod that mounts a volume.
func podWith(source corev1.VolumeSource) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", UID: uid},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
			Volumes:    []corev1.Volume{{Name: "v", VolumeSource: source}},
		},
	}
}

// TestTranslateRefuses checks that a pod with a field that cannot be translated is
// refused, and the remedy.
func TestTranslateRefuses(t *testing.T) {
	env := func(from corev1.EnvVarSource) corev1.Pod {
		pod := podWith(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "E", ValueFrom: &from}}
		return pod
	}
	reference := corev1.LocalObjectReference{Name: "absent"}
	claim := podWith(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	claim.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
	for want, pod := range map[string]corev1.Pod{
		"the data of claims":                                                            podWith(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}),
		"the data of claims and other storage":                                          podWith(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs", Path: "/"}}),
		"a hostPath would be a folder of this":                                          podWith(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}),
		`volume "v": the request has no ConfigMap`:                                      podWith(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: reference}}),
		`the request has no Secret "absent"`:                                            podWith(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "absent"}}),
		"DisableProjectedVolumes":                                                       podWith(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}),
		`container "c": env E: the request has neither a value nor the Secret "absent"`: env(corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: reference}}),
		`neither a value nor the ConfigMap "absent"`:                                    env(corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: reference}}),
		`the claim "gpu" exists only in the other cluster`:                              claim,
	} {
		if _, err := translate(createRequest{Pod: pod}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error %v", want, err)
		}
	}
	secret := podWith(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: reference}}}}})
	_, err := translate(createRequest{Pod: secret, ProjectedVolumes: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "v"}}}})
	if err == nil || !strings.Contains(err.Error(), `does not send the Secret "absent" of a projected volume`) {
		t.Errorf("the error is %v", err)
	}
}

// TestTranslateDropsBerthKeys checks that users of the other cluster cannot set labels and
// annotations of berth.
func TestTranslateDropsBerthKeys(t *testing.T) {
	pod := podWith(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	pod.Annotations = map[string]string{"berth.dev/fast-path": "auto", "interlink.berth.dev/x": "", "notberth.dev/x": "kept"}
	pod.Labels = map[string]string{"slurm.berth.dev/job": "1", "berth.dev": "kept"}
	result, err := translate(createRequest{Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"notberth.dev/x": "kept", annotationPod: "team/p"}; !maps.Equal(result.pod.Annotations, want) {
		t.Errorf("the annotations are %v, not %v", result.pod.Annotations, want)
	}
	if want := map[string]string{"berth.dev": "kept", labelUID: uid}; !maps.Equal(result.pod.Labels, want) {
		t.Errorf("the labels are %v, not %v", result.pod.Labels, want)
	}
}

// TestTranslateLargeVolume checks that the files of a projected volume may exceed the size
// limit of a Secret, because they are from several objects.
func TestTranslateLargeVolume(t *testing.T) {
	pod := podWith(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}})
	files := map[string]string{"a": strings.Repeat("a", 700<<10), "b": strings.Repeat("b", 300<<10), "c": strings.Repeat("c", 700<<10), "d": ""}
	result, err := translate(createRequest{Pod: pod, ProjectedVolumes: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Data: files}}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for i, source := range result.pod.Spec.Volumes[0].Projected.Sources {
		secret, size := result.secrets[i], 0
		for _, item := range source.Secret.Items {
			got[item.Path] = string(secret.Data[item.Key])
			size += len(secret.Data[item.Key])
		}
		if secret.Name != source.Secret.Name || size > corev1.MaxSecretSize {
			t.Errorf("Secret %s of source %s has %d bytes", secret.Name, source.Secret.Name, size)
		}
	}
	if !maps.Equal(got, files) {
		t.Errorf("there are only the files %q", slices.Sorted(maps.Keys(got)))
	}
}

// TestTranslateOptional checks that optional references to missing objects are omitted.
func TestTranslateOptional(t *testing.T) {
	yes := true
	reference := corev1.LocalObjectReference{Name: "absent"}
	pod := podWith(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: reference, Optional: &yes}})
	pod.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: "E", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: reference, Optional: &yes}}},
		{Name: "F", Value: "f"},
	}
	pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: reference, Optional: &yes}}}
	result, err := translate(createRequest{Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	container := result.pod.Spec.Containers[0]
	if len(container.Env) != 1 || container.Env[0].Name != "F" || len(container.EnvFrom) != 0 {
		t.Errorf("the environment is %+v %+v", container.Env, container.EnvFrom)
	}
	if source := result.pod.Spec.Volumes[0].ConfigMap; source == nil || source.Name == "absent" || !*source.Optional || len(result.pod.Spec.SchedulingGates) != 0 {
		t.Errorf("the pod is %+v", result.pod.Spec)
	}
}

// TestTranslateSharesObjects checks that a volume and the environment share a ConfigMap,
// and that a token volume without contents is omitted.
func TestTranslateSharesObjects(t *testing.T) {
	reference := corev1.LocalObjectReference{Name: "settings"}
	pod := podWith(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: reference}})
	pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: reference}}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: tokenVolume + "x", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}})
	pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: tokenVolume + "x", MountPath: "/t"})
	result, err := translate(createRequest{Pod: pod, ConfigMaps: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}}})
	if err != nil {
		t.Fatal(err)
	}
	container := result.pod.Spec.Containers[0]
	if len(result.configMaps) != 1 || container.EnvFrom[0].ConfigMapRef.Name != result.configMaps[0].Name {
		t.Errorf("the ConfigMaps are %+v, of the environment %+v", result.configMaps, container.EnvFrom)
	}
	if len(result.pod.Spec.Volumes) != 1 || len(container.VolumeMounts) != 1 {
		t.Errorf("the token is still there: %+v %+v", result.pod.Spec.Volumes, container.VolumeMounts)
	}
}

// TestNames checks that long names become valid and distinct local names.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 62)
	first, second := localNamespace(long+"b"), localNamespace(long+"c")
	for _, name := range []string{first, second, localNamespace("kube-system")} {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
	}
	if first == second {
		t.Errorf("two namespaces are both %s", first)
	}
	if name := localName(strings.Repeat("b.", 120)+"c", uid); len(validation.IsDNS1123Subdomain(name+"-10")) > 0 || !strings.HasSuffix(name, "-0a1b2c3d") {
		t.Errorf("the pod is %s", name)
	}
}
