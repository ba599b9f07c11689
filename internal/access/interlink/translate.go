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
	// labelUID marks the pods and namespaces of this package. Its value on a pod is
	// the UID in the foreign cluster.
	labelUID = "interlink.berth.dev/uid"
	// annotationPod is the namespace and name in the foreign cluster.
	annotationPod = "interlink.berth.dev/pod"
	// gate keeps a pod from being scheduled before its objects exist.
	gate = "interlink.berth.dev/objects"
	// annotationJobID holds the JobID of /create; interLink sets it.
	annotationJobID = "JobID"
)

// namespacePrefix keeps foreign namespaces apart from the namespaces of this cluster.
const namespacePrefix = "interlink-"

// maxPodName bounds a pod's foreign name in its name here, which the names of its
// objects extend.
const maxPodName = 230

// localNamespace returns the namespace here for a foreign one.
func localNamespace(foreign string) string {
	name := namespacePrefix + foreign
	if len(name) <= validation.DNS1123LabelMaxLength {
		return name
	}
	digest := fmt.Sprintf("-%x", sha256.Sum256([]byte(foreign)))[:9]
	return strings.TrimRight(name[:validation.DNS1123LabelMaxLength-len(digest)], "-") + digest
}

// localName returns the name here for a foreign pod. It is unique to the UID, because
// a pod and its successor of the same name may exist at once.
func localName(name string, uid types.UID) string {
	if len(name) > maxPodName {
		name = strings.TrimRight(name[:maxPodName], "-.")
	}
	return name + "-" + string(uid)[:8]
}

// translation is a foreign pod, as this cluster can run it.
type translation struct {
	pod *corev1.Pod
	// configMaps and secrets hold what its volumes and environment need. The pod is
	// to own them.
	configMaps []corev1.ConfigMap
	secrets    []corev1.Secret
	// ignored names the fields that have no meaning here.
	ignored []string
}

// translate returns the pod for this cluster. The error names a field without which
// the pod would be another one, such as a claim.
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

// ofBerth reports whether a label or annotation is berth's. Such annotations are for
// the user of the cluster: one can undo what the namespace says about the fast path.
func ofBerth(key, _ string) bool {
	domain, _, prefixed := strings.Cut(key, "/")
	return prefixed && (domain == "berth.dev" || strings.HasSuffix(domain, ".berth.dev"))
}

// localSpec returns the fields that mean the same in every cluster. The host's
// namespaces are among them, so that the namespace's Pod Security level decides. The
// volumes are added later.
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
		// Services and accounts of this cluster are not the pod's.
		EnableServiceLinks:           &no,
		AutomountServiceAccountToken: &no,
	}
}

// ignoredFields names the fields whose values refer to objects of the other cluster
// and that a user may have set.
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
