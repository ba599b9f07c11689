package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// workflow is a Workflow of Argo.
type workflow struct {
	APIVersion, Kind string
	Metadata         metav1.ObjectMeta
	Spec             struct {
		Entrypoint   string
		PodMetadata  struct{ Annotations, Labels map[string]string }
		NodeSelector map[string]string
		Tolerations  []object
		DNSPolicy    string
		Templates    []template
	}
	succeeded []string
	pods      []object
}

type template struct {
	Name      string
	Metadata  struct{ Annotations, Labels map[string]string }
	Container object
	Script    object
	Steps     [][]task
	DAG       struct{ Tasks []task }
}

type task struct {
	Name, Template, When string
	WithItems            []any
	Dependencies         []string
	Arguments            struct {
		Parameters []struct{ Name, Value string }
	}
}

// podsOf returns the pods of a Workflow that may start: those whose predecessors have succeeded.
// Argo's containers init and wait are missing, and so are its hashes in names.
func podsOf(text []byte, succeeded []string) ([]object, error) {
	w := workflow{succeeded: succeeded}
	if err := json.Unmarshal(text, &w); err != nil {
		return nil, fmt.Errorf("read the Workflow: %w", err)
	}
	_, err := w.run(task{Template: w.Spec.Entrypoint}, w.Metadata.Name, nil)
	return w.pods, err
}

// run adds the pods of a task, and reports whether all of them have succeeded. node is the name of
// the task's node in Argo's status.
func (w *workflow) run(t task, node string, parent map[string]string) (done bool, err error) {
	i := slices.IndexFunc(w.Spec.Templates, func(one template) bool { return one.Name == t.Template })
	switch {
	case i < 0:
		return false, fmt.Errorf("the Workflow has no template %q", t.Template)
	case t.When != "" || len(t.WithItems) > 0 || w.Spec.Templates[i].Script != nil:
		return false, fmt.Errorf("template %q: this stand-in knows no when, withItems and script", t.Template)
	}
	of, inputs := w.Spec.Templates[i], map[string]string{}
	for _, p := range t.Arguments.Parameters {
		inputs[p.Name] = filled(p.Value, parent)
	}
	if of.Container != nil {
		return w.pod(of, node, inputs)
	}
	all := true
	for i, step := range of.Steps {
		for _, one := range step {
			done, err := w.run(one, fmt.Sprintf("%s[%d].%s", node, i, one.Name), inputs)
			if all = all && done; err != nil {
				return false, err
			}
		}
		if !all {
			return false, nil
		}
	}
	ended := map[string]bool{}
	for _, one := range of.DAG.Tasks { // in these files, a task is below its dependencies
		ready := !slices.ContainsFunc(one.Dependencies, func(name string) bool { return !ended[name] })
		if ready {
			if ended[one.Name], err = w.run(one, node+"."+one.Name, inputs); err != nil {
				return false, err
			}
		}
		all = all && ended[one.Name]
	}
	return all, nil
}

// pod adds a pod that has not succeeded.
func (w *workflow) pod(of template, node string, inputs map[string]string) (done bool, err error) {
	name := strings.ToLower(strings.NewReplacer(".", "-", "[", "-", "]", "").Replace(node))
	if slices.Contains(w.succeeded, name) {
		return true, nil
	}
	labels := map[string]string{"workflows.argoproj.io/workflow": w.Metadata.Name, "workflows.argoproj.io/completed": "false"}
	annotations := map[string]string{"workflows.argoproj.io/node-name": node}
	for _, more := range []struct{ annotations, labels map[string]string }{{w.Spec.PodMetadata.Annotations, w.Spec.PodMetadata.Labels}, {of.Metadata.Annotations, of.Metadata.Labels}} {
		maps.Copy(labels, more.labels)
		maps.Copy(annotations, more.annotations)
	}
	container := clone(of.Container)
	container["name"] = "main"
	owner := set{Kind: w.Kind, APIVersion: w.APIVersion, Metadata: w.Metadata}
	pod := object{"apiVersion": "v1", "kind": "Pod", "metadata": owner.child(name, labels, annotations), "spec": object{
		"restartPolicy": "Never", "containers": []object{container}, "nodeSelector": w.Spec.NodeSelector, "tolerations": w.Spec.Tolerations,
	}}
	text, err := json.Marshal(pod)
	if err != nil {
		return false, err
	}
	var with object
	if err := json.Unmarshal([]byte(filled(string(text), inputs)), &with); err != nil {
		return false, err
	}
	w.pods = append(w.pods, with)
	return false, nil
}

// filled returns a text with the values of its parameters.
func filled(text string, inputs map[string]string) string {
	for name, value := range inputs {
		text = strings.ReplaceAll(text, "{{inputs.parameters."+name+"}}", value)
	}
	return text
}
