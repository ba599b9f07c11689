package interlink

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// listFrom is the number of pods in a namespace that makes one list cheaper than queries.
const listFrom = 20

// locals finds the local pods of one /status request.
type locals struct {
	cluster *connected // nil if there is none now
	// listed holds the local pods by namespace and name, for namespaces that were listed.
	listed map[string]map[string]*corev1.Pod
}

// locate returns the locals of foreign pods. It lists the pods of each namespace that has many
// of them.
func (s *Server) locate(ctx context.Context, foreign []corev1.Pod) (*locals, error) {
	l := &locals{listed: map[string]map[string]*corev1.Pod{}}
	var err error
	if l.cluster, err = s.connection.get(); err != nil {
		return l, nil // status gives the reason
	}
	counts := map[string]int{}
	for i := range foreign {
		namespace := localNamespace(foreign[i].Namespace)
		if counts[namespace]++; counts[namespace] != listFrom {
			continue
		}
		list, err := l.cluster.API.Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		pods := map[string]*corev1.Pod{}
		for i := range list.Items {
			pods[list.Items[i].Name] = &list.Items[i]
		}
		l.listed[namespace] = pods
	}
	return l, nil
}

// find works like the function of that name.
func (l *locals) find(ctx context.Context, foreign *corev1.Pod) (*corev1.Pod, error) {
	namespace, name := localNamespace(foreign.Namespace), localName(foreign.Name, foreign.UID)
	pods, listed := l.listed[namespace]
	if !listed {
		return find(ctx, l.cluster, foreign)
	}
	pod := pods[name]
	if pod == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	return own(pod, foreign)
}
