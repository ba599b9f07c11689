package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"

	"berth.dev/berth/internal/base/cluster"
)

// podIDs is an admission plugin. It refuses pods with user and group ids that the nodes do
// not have, and workloads that would create such pods. A node has the ids of its user namespace,
// whose map is written once, when the node starts. The kubelet would try such a pod
// again and again.
type podIDs struct {
	*admission.Handler
	// users and groups hold the ids of a node; nil permits all ids.
	users, groups []idExtent
}

// idExtent holds the ids from first to last.
type idExtent struct{ first, last int64 }

const podIDsPlugin = "BerthPodIDs"

// addPodIDs adds the plugin to kube-apiserver's. The plugin checks the ids of this node,
// because sites give all nodes the same subordinate ids.
func addPodIDs(opts *options.ServerRunOptions, plan cluster.Plan) error {
	p := &podIDs{Handler: admission.NewHandler(admission.Create, admission.Update)}
	if !plan.OneUID { // with one uid, the runtime ignores the ids of pods
		var err error
		if p.users, err = ownExtents("/proc/self/uid_map"); err != nil {
			return err
		}
		if p.groups, err = ownExtents("/proc/self/gid_map"); err != nil {
			return err
		}
	}
	plugins := opts.Admission.GenericAdmission
	plugins.Plugins.Register(podIDsPlugin, func(io.Reader) (admission.Interface, error) { return p, nil })
	plugins.RecommendedPluginOrder = append(plugins.RecommendedPluginOrder, podIDsPlugin)
	plugins.EnablePlugins = append(plugins.EnablePlugins, podIDsPlugin)
	return nil
}

func ownExtents(path string) ([]idExtent, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the node's ids: %w", err)
	}
	return parseExtents(string(text))
}

// parseExtents parses a uid_map or gid_map, and joins adjacent ranges.
func parseExtents(text string) (all []idExtent, err error) {
	for line := range strings.Lines(text) {
		var first, outside, count int64
		if _, err := fmt.Sscan(line, &first, &outside, &count); err != nil {
			return nil, fmt.Errorf("read the node's ids: %q: %w", line, err)
		}
		if n := len(all); n > 0 && all[n-1].last+1 == first {
			all[n-1].last += count
			continue
		}
		all = append(all, idExtent{first, first + count - 1})
	}
	return all, nil
}

// Validate implements admission.ValidationInterface.
func (p *podIDs) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" && a.GetSubresource() != "ephemeralcontainers" {
		return nil
	}
	err := p.check(podSpec(a.GetObject()))
	// Objects that exist already, from an earlier cluster, can be changed and
	// removed.
	if err == nil || a.GetOperation() == admission.Update && p.check(podSpec(a.GetOldObject())) != nil {
		return nil
	}
	return admission.NewForbidden(a, err)
}

// podSpec returns the spec of a pod, or of the pods of a workload, and nil for all
// other objects.
func podSpec(object runtime.Object) *core.PodSpec {
	switch o := object.(type) {
	case *core.Pod:
		return &o.Spec
	case *apps.Deployment:
		return &o.Spec.Template.Spec
	case *apps.StatefulSet:
		return &o.Spec.Template.Spec
	case *apps.DaemonSet:
		return &o.Spec.Template.Spec
	case *apps.ReplicaSet:
		return &o.Spec.Template.Spec
	case *batch.Job:
		return &o.Spec.Template.Spec
	case *batch.CronJob:
		return &o.Spec.JobTemplate.Spec.Template.Spec
	}
	return nil
}

func (p *podIDs) check(spec *core.PodSpec) error {
	if spec == nil {
		return nil
	}
	var problems []error
	if s := spec.SecurityContext; s != nil {
		if s.HostUsers != nil && !*s.HostUsers {
			problems = append(problems, errors.New("hostUsers is false: that takes 65536 further user ids for each pod and mounts with mapped ids, which an ordinary user does not have on a node; leave hostUsers out"))
		}
		problems = append(problems, p.user("runAsUser of the pod", s.RunAsUser), p.group("runAsGroup of the pod", s.RunAsGroup), p.group("fsGroup of the pod", s.FSGroup))
		for _, id := range s.SupplementalGroups {
			problems = append(problems, p.group("one of supplementalGroups of the pod", &id))
		}
	}
	container := func(name string, s *core.SecurityContext) {
		if s != nil {
			problems = append(problems, p.user(fmt.Sprintf("runAsUser of container %q", name), s.RunAsUser), p.group(fmt.Sprintf("runAsGroup of container %q", name), s.RunAsGroup))
		}
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		container(c.Name, c.SecurityContext)
	}
	for _, c := range spec.EphemeralContainers {
		container(c.Name, c.SecurityContext)
	}
	return errors.Join(problems...)
}

func (p *podIDs) user(what string, id *int64) error {
	return checkID(what, id, p.users, "user", "/etc/subuid")
}

func (p *podIDs) group(what string, id *int64) error {
	return checkID(what, id, p.groups, "group", "/etc/subgid")
}

func checkID(what string, id *int64, extents []idExtent, kind, file string) error {
	if id == nil || extents == nil {
		return nil
	}
	var ranges []string
	for _, e := range extents {
		if *id >= e.first && *id <= e.last {
			return nil
		}
		ranges = append(ranges, fmt.Sprintf("%d to %d", e.first, e.last))
	}
	return fmt.Errorf("%s is %d, and the nodes have the %s ids %s: choose one of these, or leave it out (%s gives a user more)", what, *id, kind, strings.Join(ranges, ", "), file)
}

var _ admission.ValidationInterface = (*podIDs)(nil)
