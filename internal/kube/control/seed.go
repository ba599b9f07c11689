package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	flowcontrolbootstrap "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	schedulingbootstrap "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/servicecidrs"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"berth.dev/berth/internal/base/cluster"
)

// The seed holds the objects that upstream's hooks and controllers create in a
// new cluster, and berth's own objects. They are written directly to the store
// before anything reads from it. Through the API the same 240 objects cost a
// tenth of a CPU second just when the kubelet needs it, and the last one exists
// only after 200 ms; a request that misses one fails, and its sender backs off.
// Upstream's own functions in the same binary make most objects, so these cannot
// differ from what upstream would create. testSeed and testAsCreated compare the
// others with upstream's.

const (
	// storagePrefix is kube-apiserver's --etcd-prefix.
	storagePrefix = "/registry/"
	// transactionSize is etcd's limit of operations (MaxTxnOps).
	transactionSize = 128
	// transactionBytes bounds the size of a transaction. It leaves room below etcd's limit
	// on a request, 1.5 MiB.
	transactionBytes = 1 << 20
	// electionPause is the time between two attempts while etcd has no leader.
	electionPause = 50 * time.Millisecond
)

// electing lists etcd's errors for a request that an election has interrupted.
var electing = []error{
	rpctypes.ErrNoLeader, rpctypes.ErrLeaderChanged, rpctypes.ErrTimeout,
	rpctypes.ErrTimeoutDueToLeaderFail, rpctypes.ErrTimeoutDueToConnectionLost,
}

// seedStore fills an empty store with the seed and the objects of an earlier cluster, and
// reports whether the store was empty. On a node other than the head, it waits until the
// head has filled the store. It calls notice with problems that the user should know.
func seedStore(ctx context.Context, s *store, plan cluster.Plan, notice func(string)) (bool, error) {
	client, err := s.client()
	if err != nil {
		return false, err
	}
	defer client.Close()
	// done is the last key to be written. If it is missing, an earlier attempt may have
	// been interrupted.
	const done = storagePrefix + "berth/seeded"
	var found *clientv3.GetResponse
	err = whileElecting(ctx, func() (err error) {
		found, err = client.Get(ctx, done, clientv3.WithCountOnly())
		return err
	})
	if err != nil {
		return false, fmt.Errorf("look for a cluster in etcd: %w", err)
	}
	if found.Count > 0 {
		return false, nil
	}
	if !plan.Head() {
		return true, awaitSeed(ctx, client, done)
	}
	objects, err := seedObjects(plan)
	if err != nil {
		return false, err
	}
	left, notices, err := restored(plan)
	if err != nil {
		return false, err
	}
	objects = merge(objects, left)
	puts := make([]clientv3.Op, 0, len(objects)+1)
	for _, o := range objects {
		puts = append(puts, clientv3.OpPut(o.key, string(o.value)))
	}
	puts = append(puts, clientv3.OpPut(done, plan.RunID))
	for len(puts) > 0 {
		n := transaction(puts)
		err := whileElecting(ctx, func() error {
			_, err := client.Txn(ctx).Then(puts[:n]...).Commit()
			return err
		})
		if err != nil {
			return false, fmt.Errorf("write the first objects to etcd: %w", err)
		}
		puts = puts[n:]
	}
	for _, text := range notices {
		notice(text)
	}
	// The file is in memory, and no longer needed.
	if err := os.Remove(plan.Paths.Restore()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("remove what was restored: %w", err)
	}
	return true, nil
}

// whileElecting repeats a request to etcd while it fails because the members elect a
// leader, as etcd's network client does. The request may be executed twice. When ctx
// ends, whileElecting returns the last error.
func whileElecting(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		var refused rpctypes.EtcdError
		if !errors.As(err, &refused) || !slices.Contains(electing, error(refused)) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(electionPause):
		}
	}
}

// transaction returns the number of operations that fit into one transaction.
// etcd bounds their number and their size.
func transaction(puts []clientv3.Op) int {
	size := 0
	for i, put := range puts {
		size += len(put.KeyBytes()) + len(put.ValueBytes())
		if i > 0 && (i == transactionSize || size > transactionBytes) {
			return i
		}
	}
	return len(puts)
}

// awaitSeed returns when another member has filled the store.
func awaitSeed(ctx context.Context, client *clientv3.Client, done string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for answer := range client.Watch(ctx, done, clientv3.WithRev(1)) {
		if err := answer.Err(); err != nil {
			return fmt.Errorf("wait for the first objects in etcd: %w", err)
		}
		if len(answer.Events) > 0 {
			return nil
		}
	}
	return fmt.Errorf("wait for the first objects in etcd: %w", context.Cause(ctx))
}

// seedObject is an object as kube-apiserver stores it.
type seedObject struct {
	key   string
	value []byte
}

// seeder collects encoded objects. After the first error, it ignores further objects.
type seeder struct {
	encoder runtime.Encoder
	now     metav1.Time
	objects []seedObject
	err     error
}

// object is any Kubernetes object.
type object interface {
	runtime.Object
	metav1.Object
}

func (s *seeder) add(path string, o object) {
	if s.err != nil {
		return
	}
	o.SetUID(uuid.NewUUID())
	o.SetCreationTimestamp(s.now)
	legacyscheme.Scheme.Default(o)
	value, err := runtime.Encode(s.encoder, o)
	if err != nil {
		s.err = fmt.Errorf("encode %s: %w", path, err)
		return
	}
	s.objects = append(s.objects, seedObject{storagePrefix + path, value})
}

func seedObjects(plan cluster.Plan) ([]seedObject, error) {
	protobuf, known := runtime.SerializerInfoForMediaType(
		legacyscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !known {
		return nil, fmt.Errorf("encode the first objects: no serializer for %s", runtime.ContentTypeProtobuf)
	}
	s := &seeder{
		encoder: legacyscheme.Codecs.EncoderForVersion(protobuf.Serializer, schema.GroupVersions{
			corev1.SchemeGroupVersion, rbacv1.SchemeGroupVersion, schedulingv1.SchemeGroupVersion,
			flowcontrolv1.SchemeGroupVersion, networkingv1.SchemeGroupVersion,
			discoveryv1.SchemeGroupVersion, storagev1.SchemeGroupVersion, admissionv1.SchemeGroupVersion,
		}),
		now: metav1.NewTime(time.Now().Truncate(time.Second)),
	}
	if err := s.addNamespaces(plan); err != nil {
		return nil, err
	}
	s.addPolicy()
	s.addPriorities()
	s.addServiceRange(plan)
	s.addAddons(plan)
	if err := s.addSlurmPods(plan); err != nil {
		return nil, err
	}
	return s.objects, s.err
}

// addNamespaces adds the namespaces, and the two objects that controllers put into
// each, without which pods are refused.
func (s *seeder) addNamespaces(plan cluster.Plan) error {
	ca, err := os.ReadFile(plan.Paths.PKI(cluster.CA + ".crt"))
	if err != nil {
		return fmt.Errorf("read the cluster's CA: %w", err)
	}
	for _, name := range []string{
		metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease,
	} {
		s.add("namespaces/"+name, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}},
			Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		})
		s.add("serviceaccounts/"+name+"/default", &corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: name},
		})
		s.add("configmaps/"+name+"/"+rootcacertpublisher.RootCACertConfigMapName, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name: rootcacertpublisher.RootCACertConfigMapName, Namespace: name,
				Annotations: map[string]string{rootcacertpublisher.DescriptionAnnotation: rootcacertpublisher.Description},
			},
			Data: map[string]string{"ca.crt": string(ca)},
		})
	}
	return nil
}

// addPolicy adds the roles of upstream and of berth, with their bindings.
func (s *seeder) addPolicy() {
	clusterRoles := append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...)
	for _, r := range append(clusterRoles, addonRoles()...) {
		s.add("clusterroles/"+r.Name, &r)
	}
	clusterBindings := append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...)
	for _, b := range append(clusterBindings, addonBindings()...) {
		s.add("clusterrolebindings/"+b.Name, &b)
	}
	for namespace, roles := range bootstrappolicy.NamespaceRoles() {
		for _, r := range roles {
			r.Namespace = namespace
			s.add("roles/"+namespace+"/"+r.Name, &r)
		}
	}
	for namespace, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, b := range bindings {
			b.Namespace = namespace
			s.add("rolebindings/"+namespace+"/"+b.Name, &b)
		}
	}
}

// addPriorities adds the priority classes of pods and the priority levels of
// requests.
func (s *seeder) addPriorities() {
	for _, class := range schedulingbootstrap.SystemPriorityClasses() {
		class = class.DeepCopy()
		class.Generation = 1
		s.add("priorityclasses/"+class.Name, class)
	}
	// With this annotation, kube-apiserver updates the object to its own version.
	upstreams := func(o object) {
		o.SetGeneration(1)
		o.SetAnnotations(map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"})
	}
	for _, flows := range [][]*flowcontrolv1.FlowSchema{
		flowcontrolbootstrap.MandatoryFlowSchemas, flowcontrolbootstrap.SuggestedFlowSchemas,
	} {
		for _, flow := range flows {
			flow = flow.DeepCopy()
			upstreams(flow)
			s.add("flowschemas/"+flow.Name, flow)
		}
	}
	for _, levels := range [][]*flowcontrolv1.PriorityLevelConfiguration{
		flowcontrolbootstrap.MandatoryPriorityLevelConfigurations,
		flowcontrolbootstrap.SuggestedPriorityLevelConfigurations,
	} {
		for _, level := range levels {
			level = level.DeepCopy()
			upstreams(level)
			s.add("prioritylevelconfigurations/"+level.Name, level)
		}
	}
}

// addServiceRange adds the range of Service addresses, without which none can
// be created.
func (s *seeder) addServiceRange(plan cluster.Plan) {
	s.add("servicecidrs/kubernetes", &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{
			Name:       "kubernetes",
			Generation: 1,
			Finalizers: []string{servicecidrs.ServiceCIDRProtectionFinalizer},
		},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: strings.Split(serviceRanges(plan), ",")},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{
			Type:               networkingv1.ServiceCIDRConditionReady,
			Status:             metav1.ConditionTrue,
			Message:            "Kubernetes default Service CIDR is ready",
			LastTransitionTime: s.now,
		}}},
	})
}
