package objects

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"berth.dev/berth/internal/kube/savedstate"
)

// passing lists keys, and key prefixes that end in a slash, of objects that end
// with the cluster: they concern its nodes, addresses and keys, or the next cluster
// creates them itself.
var passing = []string{
	"berth/", "health", "minions/", "leases/", "events/", "csinodes/", "csistoragecapacities/", "volumeattachments/",
	"masterleases/", "ipaddresses/", "servicecidrs/", "services/endpoints/", "resourceslices/", "leasecandidates/",
	"storageversions/", "internal.apiserver.k8s.io/", "certificatesigningrequests/", "podcertificaterequests/",
	"services/specs/default/kubernetes", "services/specs/kube-system/kube-dns",
	"endpointslices/default/kubernetes", "endpointslices/kube-system/kube-dns-berth",
	"configmaps/kube-system/extension-apiserver-authentication", "configmaps/kube-system/berth-run",
	"configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking",
	"storageclasses/local", "storageclasses/shared",
	"mutatingadmissionpolicies/slurm-pods.berth.dev", "mutatingadmissionpolicybindings/slurm-pods.berth.dev",
}

// upstreams maps prefixes of keys to a text that only objects have which Kubernetes
// itself keeps up to date.
var upstreams = map[string]string{
	"endpointslices/":              "endpointslice",
	"apiregistration.k8s.io/":      "kube-aggregator.kubernetes.io/automanaged",
	"clusterroles/":                "kubernetes.io/bootstrapping",
	"clusterrolebindings/":         "kubernetes.io/bootstrapping",
	"roles/":                       "kubernetes.io/bootstrapping",
	"rolebindings/":                "kubernetes.io/bootstrapping",
	"flowschemas/":                 "apf.kubernetes.io/autoupdate-spec",
	"prioritylevelconfigurations/": "apf.kubernetes.io/autoupdate-spec",
}

// binding lists the annotations that bind a claim to its volume.
var binding = []string{
	"pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller",
	"volume.kubernetes.io/selected-node", "volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner",
}

// emptyAnnotation marks a claim that has lost its volume, which was on a node of an
// earlier job.
const emptyAnnotation = "berth.dev/emptied"

// provisionedBy is the annotation with the provisioner of a volume, and provisioner is
// berth's, whose volumes are on nodes.
const provisionedBy, provisioner = "pv.kubernetes.io/provisioned-by", "berth.dev/local"

// Lasting returns the records that outlive the cluster, without references to its
// nodes and keys. It returns an error if a record cannot be decoded.
//
// stays reports whether a node may outlive the cluster, because it belongs to another job.
// Such a node keeps its pods and volumes. Lasting with nil removes them, also from records
// that an earlier call has returned.
func Lasting(all []savedstate.Record, stays func(node string) bool) ([]savedstate.Record, error) {
	local := map[string]bool{}
	for _, record := range all {
		if name, ok := strings.CutPrefix(record.Key, "persistentvolumes/"); ok {
			volume, err := decode[*corev1.PersistentVolume](record)
			if err != nil {
				return nil, err
			}
			local[name] = volume.Annotations[provisionedBy] == provisioner && !(stays != nil && stays(hostOf(volume)))
		}
	}
	var lasting []savedstate.Record
	for _, record := range all {
		kept, err := last(record, local, stays)
		if err != nil {
			return nil, err
		}
		if kept != nil {
			lasting = append(lasting, *kept)
		}
	}
	return lasting, nil
}

// hostOf returns the node of a volume that is on a node, or "".
func hostOf(volume *corev1.PersistentVolume) string {
	if affinity := volume.Spec.NodeAffinity; affinity != nil && affinity.Required != nil {
		for _, term := range affinity.Required.NodeSelectorTerms {
			for _, wanted := range term.MatchExpressions {
				if wanted.Key == corev1.LabelHostname && len(wanted.Values) == 1 {
					return wanted.Values[0]
				}
			}
		}
	}
	return ""
}

// last returns the record for the next cluster, or nil if the record does not
// outlive its cluster.
func last(record savedstate.Record, local map[string]bool, stays func(node string) bool) (*savedstate.Record, error) {
	kind, rest, _ := strings.Cut(record.Key, "/")
	switch {
	case stays != nil && (kind == "minions" || kind == "csinodes") && stays(rest):
		return &record, nil
	case stays != nil && kind == "endpointslices" && !slices.Contains(passing, record.Key):
		return &record, nil // their controller removes what has gone
	case passes(record), kind == "configmaps" && strings.HasSuffix(rest, "/kube-root-ca.crt"):
		return nil, nil
	case kind == "persistentvolumes" && local[rest]:
		return nil, nil
	case kind == "pods":
		return change(record, func(pod *corev1.Pod) bool {
			return stays != nil && pod.Spec.NodeName != "" && stays(pod.Spec.NodeName) || lastPod(pod)
		})
	case kind == "secrets":
		return change(record, lastSecret)
	case kind == "persistentvolumeclaims":
		return change(record, func(claim *corev1.PersistentVolumeClaim) bool { lastClaim(claim, local); return true })
	case strings.HasPrefix(record.Key, "services/specs/"):
		return change(record, func(service *corev1.Service) bool {
			service.Status.LoadBalancer = corev1.LoadBalancerStatus{}
			return true
		})
	}
	return &record, nil
}

func passes(record savedstate.Record) bool {
	for _, key := range passing {
		if record.Key == key || strings.HasSuffix(key, "/") && strings.HasPrefix(record.Key, key) {
			return true
		}
	}
	for prefix, word := range upstreams {
		if strings.HasPrefix(record.Key, prefix) && bytes.Contains(record.Value, []byte(word)) {
			// A user's own slices have another manager.
			return prefix != "endpointslices/" || bytes.Contains(record.Value, []byte("-controller.k8s.io"))
		}
	}
	return false
}

// lastPod keeps only bare pods, because controllers create the other pods again.
// A bare pod that has not ended starts again, on any node.
func lastPod(pod *corev1.Pod) bool {
	if metav1.GetControllerOf(pod) != nil || pod.DeletionTimestamp != nil || pod.Annotations[corev1.MirrorPodAnnotationKey] != "" {
		return false
	}
	pod.Spec.NodeName = "" // upstream deletes pods of nodes that do not exist
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: pod.Status.QOSClass}
	}
	return true
}

// lastSecret removes data that the cluster signed with its keys; the next cluster
// signs it again.
func lastSecret(secret *corev1.Secret) bool {
	switch secret.Type {
	case corev1.SecretTypeBootstrapToken:
		return false
	case corev1.SecretTypeServiceAccountToken:
		secret.Data = nil
	}
	return true
}

// lastClaim unbinds a claim whose volume was on a node, so that it gets a new
// volume.
func lastClaim(claim *corev1.PersistentVolumeClaim, local map[string]bool) {
	bound := claim.Spec.VolumeName != ""
	if bound && !local[claim.Spec.VolumeName] {
		return
	}
	maps.DeleteFunc(claim.Annotations, func(name, _ string) bool { return slices.Contains(binding, name) })
	if bound {
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, emptyAnnotation, "its volume was on a node of an earlier job")
	}
	claim.Spec.VolumeName = ""
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
}

// change decodes a record, calls do, which may change the object, and encodes the object
// again. It returns nil if do returns false.
func change[T runtime.Object](record savedstate.Record, do func(T) bool) (*savedstate.Record, error) {
	object, err := decode[T](record)
	if err != nil {
		return nil, err
	}
	if !do(object) {
		return nil, nil
	}
	changed, err := encode(record.Key, object)
	return &changed, err
}

func decode[T runtime.Object](record savedstate.Record) (object T, err error) {
	decoded, err := runtime.Decode(legacyscheme.Codecs.UniversalDeserializer(), record.Value)
	if err != nil {
		return object, fmt.Errorf("decode %s: %w", record.Key, err)
	}
	object, ok := decoded.(T)
	if !ok {
		return object, fmt.Errorf("decode %s: it is a %T", record.Key, decoded)
	}
	return object, nil
}

func encode(key string, object runtime.Object) (savedstate.Record, error) {
	protobuf, known := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !known {
		return savedstate.Record{}, fmt.Errorf("encode %s: no serializer for %s", key, runtime.ContentTypeProtobuf)
	}
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(object)
	if err != nil {
		return savedstate.Record{}, fmt.Errorf("encode %s: %w", key, err)
	}
	encoder := legacyscheme.Codecs.EncoderForVersion(protobuf.Serializer, schema.GroupVersions{kinds[0].GroupVersion()})
	value, err := runtime.Encode(encoder, object)
	if err != nil {
		return savedstate.Record{}, fmt.Errorf("encode %s: %w", key, err)
	}
	return savedstate.Record{Key: key, Value: value}, nil
}
