// Standin makes the objects that the controllers of JobSet, LeaderWorkerSet and Argo Workflows would
// make, in tests that cannot run these controllers: the Go module proxy does not have them. It reads
// a JobSet, a LeaderWorkerSet or a Workflow as JSON from standard input, and prints a List for
// kubectl.
//
// The objects have the labels and annotations that the controllers give them. Objects of sets also
// have the names. The arguments name the replicated jobs, or the pods of a Workflow, that have succeeded:
// others that depend on them are made only then. Restarts, Services and statuses are missing.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type object = map[string]any

// set is a JobSet or a LeaderWorkerSet.
type set struct {
	Kind, APIVersion string
	Metadata         metav1.ObjectMeta
	Spec             struct {
		ReplicatedJobs []struct {
			Name      string
			Replicas  int
			DependsOn []struct{ Name string }
			Template  struct{ Spec object }
		}
		Replicas             int
		LeaderWorkerTemplate struct {
			Size                           int
			LeaderTemplate, WorkerTemplate struct {
				Metadata struct{ Labels map[string]string }
				Spec     object
			}
		}
	}
}

func main() {
	if err := run(os.Stdin, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "standin:", err)
		os.Exit(1)
	}
}

func run(from io.Reader, to io.Writer, succeeded []string) error {
	text, err := io.ReadAll(from)
	if err != nil {
		return fmt.Errorf("read the object: %w", err)
	}
	var s set
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("read the object: %w", err)
	}
	var items []object
	switch s.Kind {
	case "JobSet":
		items = s.jobs(succeeded)
	case "LeaderWorkerSet":
		items = s.pods()
	case "Workflow":
		if items, err = podsOf(text, succeeded); err != nil {
			return err
		}
	default:
		return fmt.Errorf("kind %q: give a JobSet, a LeaderWorkerSet or a Workflow", s.Kind)
	}
	return json.NewEncoder(to).Encode(object{"apiVersion": "v1", "kind": "List", "items": items})
}

// jobs returns the Jobs of a JobSet that may start.
func (s set) jobs(succeeded []string) (jobs []object) {
	total := 0
	for _, one := range s.Spec.ReplicatedJobs {
		total += one.Replicas
	}
	for _, one := range s.Spec.ReplicatedJobs {
		if slices.Contains(succeeded, one.Name) || slices.ContainsFunc(one.DependsOn, func(d struct{ Name string }) bool { return !slices.Contains(succeeded, d.Name) }) {
			continue
		}
		for i := range one.Replicas {
			name := fmt.Sprintf("%s-%s-%d", s.Metadata.Name, one.Name, i)
			labels := map[string]string{
				"jobset.sigs.k8s.io/jobset-name": s.Metadata.Name, "jobset.sigs.k8s.io/jobset-uid": string(s.Metadata.UID),
				"jobset.sigs.k8s.io/replicatedjob-name": one.Name, "jobset.sigs.k8s.io/replicatedjob-replicas": fmt.Sprint(one.Replicas),
				"jobset.sigs.k8s.io/job-index": fmt.Sprint(i), "jobset.sigs.k8s.io/restart-attempt": "0",
				"jobset.sigs.k8s.io/global-replicas": fmt.Sprint(total), "jobset.sigs.k8s.io/job-key": short(s.Metadata.Namespace + "/" + name),
			}
			spec := clone(one.Template.Spec)
			spec["completionMode"] = "Indexed"
			template, _ := spec["template"].(object)
			template["metadata"] = object{"labels": labels}
			pod, _ := template["spec"].(object)
			if pod["restartPolicy"] == nil {
				pod["restartPolicy"] = "OnFailure"
			}
			jobs = append(jobs, object{"apiVersion": "batch/v1", "kind": "Job", "metadata": s.child(name, labels, nil), "spec": spec})
		}
	}
	return jobs
}

// pods returns the pods of a LeaderWorkerSet, which its controller would make by StatefulSets.
func (s set) pods() (pods []object) {
	template := s.Spec.LeaderWorkerTemplate
	for group := range s.Spec.Replicas {
		leader := fmt.Sprintf("%s-%d", s.Metadata.Name, group)
		for worker := range template.Size {
			name, from := leader, template.LeaderTemplate
			if worker > 0 {
				name, from = fmt.Sprintf("%s-%d", leader, worker), template.WorkerTemplate
			}
			labels := map[string]string{
				"leaderworkerset.sigs.k8s.io/name": s.Metadata.Name, "leaderworkerset.sigs.k8s.io/group-index": fmt.Sprint(group),
				"leaderworkerset.sigs.k8s.io/worker-index": fmt.Sprint(worker), "leaderworkerset.sigs.k8s.io/group-key": short(s.Metadata.Namespace + "/" + leader),
			}
			maps.Copy(labels, from.Metadata.Labels)
			annotations := map[string]string{"leaderworkerset.sigs.k8s.io/size": fmt.Sprint(template.Size)}
			pods = append(pods, object{"apiVersion": "v1", "kind": "Pod", "metadata": s.child(name, labels, annotations), "spec": from.Spec})
		}
	}
	return pods
}

// child returns the metadata of an object of the set.
func (s set) child(name string, labels, annotations map[string]string) object {
	return object{
		"name": name, "namespace": s.Metadata.Namespace, "labels": labels, "annotations": annotations,
		"ownerReferences": []object{{"apiVersion": s.APIVersion, "kind": s.Kind, "name": s.Metadata.Name, "uid": s.Metadata.UID, "controller": true}},
	}
}

func short(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:40] }

func clone(from object) object {
	var to object
	text, err := json.Marshal(from)
	if err != nil || json.Unmarshal(text, &to) != nil {
		return object{}
	}
	return to
}
