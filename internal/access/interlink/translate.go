package interlink

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// labelUID marks the objects that this package creates. Its value is the foreign UID of
	// the pod, and empty for namespaces.
	labelUID = "interlink.berth.dev/uid"
	// annotationPod holds the foreign namespace and name of a pod, separated by a slash.
	annotationPod = "interlink.berth.dev/pod"
	// gate keeps a pod from being scheduled before its objects exist.
	gate = "interlink.berth.dev/objects"
	// annotationJobID holds the JobID that /create returned. interLink sets it on the
	// foreign pod.
	annotationJobID = "JobID"
)

// namespacePrefix distinguishes namespaces with foreign pods from all other local ones.
const namespacePrefix = "interlink-"

// maxPodName is the number of bytes of a foreign name that a local name contains. Suffixes
// for the UID, and for the objects of the pod, follow it.
const maxPodName = 230

// localNamespace returns the local namespace for a foreign one.
func localNamespace(foreign string) string {
	name := namespacePrefix + foreign
	if len(name) <= validation.DNS1123LabelMaxLength {
		return name
	}
	digest := fmt.Sprintf("-%x", sha256.Sum256([]byte(foreign)))[:9]
	return strings.TrimRight(name[:validation.DNS1123LabelMaxLength-len(digest)], "-") + digest
}

// localName returns the local name of a foreign pod. It contains a part of the UID,
// because a pod and its successor of the same name may exist at the same time.
func localName(name string, uid types.UID) string {
	if len(name) > maxPodName {
		name = strings.TrimRight(name[:maxPodName], "-.")
	}
	return name + "-" + string(uid)[:8]
}

// translation is the local counterpart of a foreign pod.
type translation struct {
	pod *corev1.Pod
	// configMaps and secrets hold the objects that the volumes and the environment of
	// the pod refer to. createObjects makes the pod their owner.
	configMaps []corev1.ConfigMap
	secrets    []corev1.Secret
	// ignored lists the fields of the foreign pod that the local pod does not have.
	ignored []string
}

// translate returns the local pod of a request, and its objects. It returns an error that
// names the field if the pod could not work without a field that berth cannot translate,
// such as a claim.
func translate(request createRequest) (*translation, error) {
	foreign := request.Pod.DeepCopy()
	t := &translation{pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   localNamespace(foreign.Namespace),
			Name:        localName(foreign.Name, foreign.UID),
			Labels:      map[string]string{},
			Annotations: map[string]string{},
		},
		Spec: localSpec(&foreign.Spec),
	}}
	maps.DeleteFunc(foreign.Labels, ofBerth)
	maps.DeleteFunc(foreign.Annotations, ofBerth)
	maps.Copy(t.pod.Labels, foreign.Labels)
	t.pod.Labels[labelUID] = string(foreign.UID)
	maps.Copy(t.pod.Annotations, foreign.Annotations)
	delete(t.pod.Annotations, corev1.LastAppliedConfigAnnotation)
	delete(t.pod.Annotations, annotationJobID)
	t.pod.Annotations[annotationPod] = foreign.Namespace + "/" + foreign.Name
	if t.pod.Spec.Hostname == "" && len(validation.IsDNS1123Label(foreign.Name)) == 0 {
		t.pod.Spec.Hostname = foreign.Name
	}
	t.ignored = ignoredFields(foreign)
	if len(foreign.Spec.ResourceClaims) > 0 {
		return nil, fmt.Errorf("resourceClaims: the claim %q exists only in the other cluster", foreign.Spec.ResourceClaims[0].Name)
	}
	contents := newContents(request, t)
	if err := contents.volumes(foreign.Spec.Volumes); err != nil {
		return nil, err
	}
	for _, containers := range [][]corev1.Container{t.pod.Spec.InitContainers, t.pod.Spec.Containers} {
		for i := range containers {
			contents.dropMounts(&containers[i])
			if err := contents.environment(foreign, &containers[i]); err != nil {
				return nil, fmt.Errorf("container %q: %w", containers[i].Name, err)
			}
		}
	}
	if len(t.configMaps)+len(t.secrets) > 0 {
		t.pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gate}}
	}
	return t, nil
}

// ofBerth reports whether the key of a label or annotation belongs to berth. Only users of
// the local cluster may set such annotations: one can undo what the namespace says about the
// fast path.
func ofBerth(key, _ string) bool {
	domain, _, prefixed := strings.Cut(key, "/")
	return prefixed && (domain == "berth.dev" || strings.HasSuffix(domain, ".berth.dev"))
}

// localSpec returns the fields that have the same meaning in every cluster. It keeps
// hostNetwork, hostPID and hostIPC, so that the Pod Security level of the namespace
// decides about them. The caller adds the volumes.
func localSpec(foreign *corev1.PodSpec) corev1.PodSpec {
	no := false
	return corev1.PodSpec{
		InitContainers:                foreign.InitContainers,
		Containers:                    foreign.Containers,
		RestartPolicy:                 foreign.RestartPolicy,
		TerminationGracePeriodSeconds: foreign.TerminationGracePeriodSeconds,
		ActiveDeadlineSeconds:         foreign.ActiveDeadlineSeconds,
		DNSPolicy:                     foreign.DNSPolicy,
		DNSConfig:                     foreign.DNSConfig,
		HostAliases:                   foreign.HostAliases,
		HostNetwork:                   foreign.HostNetwork,
		HostPID:                       foreign.HostPID,
		HostIPC:                       foreign.HostIPC,
		HostUsers:                     foreign.HostUsers,
		ShareProcessNamespace:         foreign.ShareProcessNamespace,
		SecurityContext:               foreign.SecurityContext,
		Hostname:                      foreign.Hostname,
		Subdomain:                     foreign.Subdomain,
		SetHostnameAsFQDN:             foreign.SetHostnameAsFQDN,
		OS:                            foreign.OS,
		Resources:                     foreign.Resources,
		// The pod gets no Services and no token of the local cluster.
		EnableServiceLinks:           &no,
		AutomountServiceAccountToken: &no,
	}
}

// ignoredFields returns the names of the fields that the local pod does not have and that
// a user, not Kubernetes, has set.
func ignoredFields(pod *corev1.Pod) []string {
	spec := &pod.Spec
	var ignored []string
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"affinity", spec.Affinity != nil},
		{"ephemeralContainers", len(spec.EphemeralContainers) > 0},
		{"imagePullSecrets", len(spec.ImagePullSecrets) > 0},
		{"nodeSelector", len(spec.NodeSelector) > 0},
		{"priorityClassName", spec.PriorityClassName != ""},
		{"readinessGates", len(spec.ReadinessGates) > 0},
		{"runtimeClassName", spec.RuntimeClassName != nil},
		{"schedulerName", spec.SchedulerName != "" && spec.SchedulerName != corev1.DefaultSchedulerName},
		{"serviceAccountName", spec.ServiceAccountName != "" && spec.ServiceAccountName != "default"},
		{"tolerations", len(spec.Tolerations) > 0},
		{"topologySpreadConstraints", len(spec.TopologySpreadConstraints) > 0},
	} {
		if field.set {
			ignored = append(ignored, field.name)
		}
	}
	return ignored
}
