package existing

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/kube/workload"
)

// CheckHosts returns an error with the names of all hosts that are no nodes of the cluster. It
// returns nil if the user may not list nodes.
func (c *Cluster) CheckHosts(ctx context.Context, hosts []string) error {
	nodes := c.Client.Dynamic().Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	var missing []string
	for _, host := range hosts {
		found, err := nodes.List(ctx, metav1.ListOptions{LabelSelector: corev1.LabelHostname + "=" + host, Limit: 1})
		if err != nil {
			return nil // an ordinary user may not list nodes; the scheduler reports what is missing
		}
		if len(found.Items) == 0 {
			missing = append(missing, host)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("place pods on the hosts of the job (--pin): no node of the cluster has the label %s=%s; 'kubectl get nodes -L %s' shows the labels, and without --pin pods run on any node",
		corev1.LabelHostname, strings.Join(missing, " or "), corev1.LabelHostname)
}

// Pin restricts the pods of the objects to the nodes that have the names of the hosts, and
// spreads them evenly. Their topology spread constraint selects the label berth.dev/run=run. Pin
// returns all errors, such as for a kind with containers in unknown fields.
func Pin(objects []workload.Object, hosts []string, run string) error {
	var problems []error
	bare := 0 // bare pods so far
	for _, object := range objects {
		template, known := templatePath(object.GetKind())
		switch {
		case !known && hasPodSpec(object.Object):
			problems = append(problems, fmt.Errorf("%s from %s: --pin does not know where this kind has its pods: give it a nodeSelector instead", object.Name(), object.Source))
			continue
		case !known:
			continue
		}
		var err error
		switch {
		case len(hosts) == 1 || object.GetKind() == "Pod":
			path := append(template, "spec", "nodeSelector", corev1.LabelHostname)
			if own, found, _ := unstructured.NestedString(object.Object, path...); found {
				err = fmt.Errorf("its nodeSelector already names a host, %s: remove %s there, or omit --pin", own, corev1.LabelHostname)
				break
			}
			err = unstructured.SetNestedField(object.Object, hosts[bare%len(hosts)], path...)
			bare++
		default:
			err = spread(object.Object, template, hosts, run, object.GetKind() != "DaemonSet")
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("pin %s from %s: %w", object.Name(), object.Source, err))
		}
	}
	return errors.Join(problems...)
}

// templatePath returns the path of the fields from an object of a kind to its pod template. The
// path is empty for a Pod, and known is false for kinds that berth does not know.
func templatePath(kind string) (path []string, known bool) {
	switch kind {
	case "Pod":
		return nil, true
	case "Job", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController":
		return []string{"spec", "template"}, true
	case "CronJob":
		return []string{"spec", "jobTemplate", "spec", "template"}, true
	}
	return nil, false
}

// hasPodSpec reports whether any field of an object, at any depth, is a list of containers.
func hasPodSpec(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		if _, found := value["containers"].([]any); found {
			return true
		}
		for _, field := range value {
			if hasPodSpec(field) {
				return true
			}
		}
	case []any:
		for _, item := range value {
			if hasPodSpec(item) {
				return true
			}
		}
	}
	return false
}

// spread restricts the pods of a template to the hosts. If evenly is set, the number of the
// run's pods on any two hosts differs by at most one.
func spread(object map[string]any, template, hosts []string, run string, evenly bool) error {
	at := func(fields ...string) []string { return append(append([]string{}, template...), fields...) }
	var values []any
	for _, host := range hosts {
		values = append(values, host)
	}
	onHosts := map[string]any{"key": corev1.LabelHostname, "operator": string(corev1.NodeSelectorOpIn), "values": values}
	path := at("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	terms, _, err := unstructured.NestedSlice(object, path...)
	if err != nil {
		return err
	}
	if len(terms) == 0 {
		terms = []any{map[string]any{}}
	}
	for _, term := range terms { // the scheduler needs one that matches
		fields, ok := term.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is not a list of objects", strings.Join(path, "."))
		}
		expressions, _ := fields["matchExpressions"].([]any)
		fields["matchExpressions"] = append(expressions, onHosts)
	}
	if err := unstructured.SetNestedSlice(object, terms, path...); err != nil || !evenly {
		return err
	}
	if err := unstructured.SetNestedField(object, run, at("metadata", "labels", labelRun)...); err != nil {
		return err
	}
	path = at("spec", "topologySpreadConstraints")
	constraints, _, err := unstructured.NestedSlice(object, path...)
	if err != nil {
		return err
	}
	constraints = append(constraints, map[string]any{
		"maxSkew": int64(1), "topologyKey": corev1.LabelHostname, "whenUnsatisfiable": string(corev1.DoNotSchedule),
		"labelSelector": map[string]any{"matchLabels": map[string]any{labelRun: run}},
	})
	return unstructured.SetNestedSlice(object, constraints, path...)
}
