package interlink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// levelLabel is Kubernetes' label for the Pod Security level of a namespace.
const levelLabel = "pod-security.kubernetes.io/enforce"

// create creates the local pod and its objects, and returns the reply. It can be repeated
// for the same pod, also after an interruption.
func (s *Server) create(ctx context.Context, request createRequest) (createReply, error) {
	t, err := translate(request)
	if err != nil {
		return createReply{}, &refusal{err}
	}
	cluster, err := s.connection.wait(ctx)
	if err != nil {
		return createReply{}, err
	}
	if s.removed.has(request.Pod.UID) {
		return createReply{}, s.abandon(ctx, cluster, &request.Pod)
	}
	if err := s.makeNamespace(ctx, cluster, t.pod.Namespace); err != nil {
		return createReply{}, err
	}
	pods := cluster.API.Pods(t.pod.Namespace)
	pod, err := pods.Create(ctx, t.pod, metav1.CreateOptions{})
	repeated := apierrors.IsAlreadyExists(err)
	if repeated {
		pod, err = find(ctx, cluster, &request.Pod)
	}
	if err != nil {
		return createReply{}, err
	}
	if s.removed.has(request.Pod.UID) { // /delete may have looked for the pod before
		return createReply{}, s.abandon(ctx, cluster, &request.Pod)
	}
	if isGated(pod) {
		if err := createObjects(ctx, cluster, pod, t); err != nil {
			return createReply{}, fmt.Errorf("make the objects of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	if !repeated {
		s.recordEvent(ctx, cluster, pod, t)
	}
	return createReply{PodUID: string(request.Pod.UID), PodJID: cluster.jobID(pod.Namespace, pod.Name)}, nil
}

// find returns the local pod of a foreign one. The error satisfies apierrors.IsNotFound if
// there is none, and is a refusal if another pod has its name.
func find(ctx context.Context, cluster *connected, foreign *corev1.Pod) (*corev1.Pod, error) {
	namespace, name := localNamespace(foreign.Namespace), localName(foreign.Name, foreign.UID)
	pod, err := cluster.API.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return own(pod, foreign)
}

// own returns a local pod, or a refusal if it does not belong to the foreign pod.
func own(pod, foreign *corev1.Pod) (*corev1.Pod, error) {
	if pod.Labels[labelUID] != string(foreign.UID) {
		return nil, &refusal{fmt.Errorf("pod %s/%s exists, and is not from interLink's pod %s: delete it", pod.Namespace, pod.Name, foreign.UID)}
	}
	return pod, nil
}

// makeNamespace creates a namespace with the Pod Security level of the server. It refuses a
// namespace that another program created, or that has another level. It does not change the
// level, because two servers would change it back and forth.
func (s *Server) makeNamespace(ctx context.Context, cluster *connected, name string) error {
	namespaces := cluster.API.Namespaces()
	namespace, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		namespace, err = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{labelUID: "", levelLabel: s.level},
		}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // a concurrent request has created it
			namespace, err = namespaces.Get(ctx, name, metav1.GetOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("make namespace %s: %w", name, err)
	}
	if _, own := namespace.Labels[labelUID]; !own {
		return &refusal{fmt.Errorf("namespace %s exists, and is not from berth serve interlink: delete it, or label it %s=", name, labelUID)}
	}
	if level := namespace.Labels[levelLabel]; level != s.level { // perhaps of another server that runs
		return &refusal{fmt.Errorf("namespace %[1]s has the Pod Security level %[2]q, and the server has --pod-security %[3]s: run 'berth kubectl %[4]s label --overwrite namespace %[1]s %[5]s=%[3]s' on %[6]s, or start the server with the namespace's level",
			name, level, s.level, cluster.Job, levelLabel, s.host)}
	}
	return nil
}

// createObjects creates the ConfigMaps and Secrets of a pod, and then removes its scheduling
// gate.
func createObjects(ctx context.Context, cluster *connected, pod *corev1.Pod, t *translation) error {
	owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}
	for i := range t.configMaps {
		t.configMaps[i].OwnerReferences = owner
		if _, err := cluster.API.ConfigMaps(pod.Namespace).Create(ctx, &t.configMaps[i], metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	for i := range t.secrets {
		t.secrets[i].OwnerReferences = owner
		if _, err := cluster.API.Secrets(pod.Namespace).Create(ctx, &t.secrets[i], metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	_, err := cluster.API.Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(`{"spec":{"schedulingGates":null}}`), metav1.PatchOptions{})
	return err
}

// gatedLimit bounds the age of a gated pod. An older one has failed: no request still creates
// its objects, because gatedLimit exceeds retryLimit.
const gatedLimit = 2 * time.Minute

// errGated is the reason why such a pod has failed.
var errGated = errors.New("berth serve interlink was ended before it had made the ConfigMaps and Secrets of the pod: delete the pod")

// isGated reports whether a local pod waits for its objects.
func isGated(pod *corev1.Pod) bool { return len(pod.Spec.SchedulingGates) > 0 }

// discard deletes the local pod if it still waits for its objects after a failed /create. Such
// a pod could never start. discard only logs an error.
func (s *Server) discard(ctx context.Context, foreign *corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, discardLimit)
	defer cancel()
	cluster, err := s.connection.get()
	if err != nil {
		return
	}
	pod, err := find(ctx, cluster, foreign)
	if err != nil || !isGated(pod) {
		return
	}
	err = cluster.API.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		s.log.Warn("delete the unfinished pod " + pod.Namespace + "/" + pod.Name + ": " + err.Error())
	}
}

// recordEvent records an Event of a pod that lists the differences from the other cluster.
// It only logs an error, because the pod works without the Event.
func (s *Server) recordEvent(ctx context.Context, cluster *connected, pod *corev1.Pod, t *translation) {
	text := "From pod " + pod.Annotations[annotationPod] + " of another cluster. " + s.restrictions(cluster)
	if len(t.ignored) > 0 {
		text += " Ignored fields: " + strings.Join(t.ignored, ", ") + "."
	}
	now := metav1.Now()
	_, err := cluster.API.Events(pod.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + "-interlink"},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeNormal, Reason: "InterLink", Message: text,
		Source: corev1.EventSource{Component: "berth-serve-interlink"}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		s.log.Warn("record an Event of pod " + pod.Namespace + "/" + pod.Name + ": " + err.Error())
	}
}

// restrictions tells users of the other cluster what does not work with local pods, and
// names the alternative.
func (s *Server) restrictions(cluster *connected) string {
	return fmt.Sprintf("kubectl exec, port-forward and Service names of the other cluster do not reach it; 'berth kubectl %s exec' on %s does.", cluster.Job, s.host)
}

// remove deletes the local pod. The garbage collector then deletes the objects that the
// pod owns. remove succeeds if the pod does not exist.
func (s *Server) remove(ctx context.Context, foreign *corev1.Pod) error {
	s.removed.add(foreign.UID)
	id := ownJobID(foreign)
	cluster, err := s.connection.get()
	if err != nil {
		if id != "" && s.connection.gone(ctx, nil, id) != "" {
			return nil
		}
		if cluster, err = s.connection.wait(ctx); err != nil {
			return err
		}
	}
	if err := removeFrom(ctx, cluster, foreign); err != nil {
		return err
	}
	if id == "" || s.connection.gone(ctx, cluster, id) != "" {
		return nil
	}
	return s.elsewhere.remove(ctx, s.connection, id, foreign)
}

// abandon deletes the local pod of a foreign pod that the virtual node has deleted during its
// creation. It returns the error of that, or else a refusal.
func (s *Server) abandon(ctx context.Context, cluster *connected, foreign *corev1.Pod) error {
	if err := removeFrom(ctx, cluster, foreign); err != nil {
		return err
	}
	return &refusal{errors.New("the virtual node has deleted the pod")}
}

// removeFrom deletes the local pod in a cluster. It succeeds if the pod does not exist.
func removeFrom(ctx context.Context, cluster *connected, foreign *corev1.Pod) error {
	pod, err := find(ctx, cluster, foreign)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = cluster.API.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: foreign.DeletionGracePeriodSeconds,
		Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
