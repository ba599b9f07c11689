// Package kinds describes the kinds of Kubernetes objects that stand for Slurm jobs: BridgeJob
// of IBM's Bridge Operator, SlurmJob and WlmJob of Sylabs' WLM-Operator. It holds their
// CustomResourceDefinitions, decodes specs, reports every problem of a spec, and decodes and
// fills in statuses. It reads no files, and calls neither the API server nor Slurm.
package kinds

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Version is the API version of all three kinds.
const Version = "v1alpha1"

// Kind names one of the three kinds.
type Kind struct {
	Group, Name, Plural string
}

// The three kinds, with the groups and names that their operators gave them.
var (
	BridgeJob = Kind{"bridgejob.ibm.com", "BridgeJob", "bridgejobs"}
	SlurmJob  = Kind{"wlm.sylabs.io", "SlurmJob", "slurmjobs"}
	WlmJob    = Kind{"wlm.sylabs.io", "WlmJob", "wlmjobs"}
)

// All returns the three kinds.
func All() []Kind { return []Kind{BridgeJob, SlurmJob, WlmJob} }

// Resource returns the resource of objects of this kind in the API.
func (k Kind) Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.Group, Version: Version, Resource: k.Plural}
}

// Reference identifies an object.
type Reference struct {
	Kind            Kind
	Namespace, Name string
}

// PodName returns the name of the pod that shows the job of an object, as the object's operator
// named it.
func (r Reference) PodName() string {
	switch r.Kind {
	case BridgeJob:
		return r.Name + "-bridge-pod"
	case WlmJob:
		return r.Name + "-wlm-job"
	default:
		return r.Name + "-job"
	}
}

// Of returns the kind of an object, or an error if it is none of the three.
func Of(object *unstructured.Unstructured) (Kind, error) {
	for _, kind := range All() {
		if object.GetKind() == kind.Name && object.GetAPIVersion() == kind.Group+"/"+Version {
			return kind, nil
		}
	}
	return Kind{}, fmt.Errorf("%s %s is no Slurm job", object.GetAPIVersion(), object.GetKind())
}
