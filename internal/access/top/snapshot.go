package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/metrics"
)

// API sends requests to an API server.
type API interface {
	// Get reads an object or a list.
	Get(ctx context.Context, path string, into any) error
	// Text reads a response that is not an object.
	Text(ctx context.Context, path string) (string, error)
}

// snapshot is a cluster at one moment.
type snapshot struct {
	At time.Time
	// Left is the time that the job may still run; negative if nothing limits it, or
	// if the limit is unknown.
	Left   time.Duration
	Nodes  []node
	Pods   []pod
	Pulls  []pull
	Events []event
	// Problems lists the data that could not be read, with reasons.
	Problems []string
	// Took is the time to list the pods, by far the longest request if there are
	// many.
	Took time.Duration
}

// node is a node of the cluster.
type node struct {
	Name    string
	Ready   bool
	Pods    int
	CPU     use
	Memory  use
	Between traffic // between other nodes and this one
	Outside traffic // between the outside and this node's pods
	// Dropped counts the dropped packets between nodes.
	Dropped uint64
	// Images counts the bytes of image layers that the node is receiving; zero if
	// it receives none.
	Images use
}

// use is the amount in use and the total. Used is negative if unknown.
type use struct{ Used, Of float64 }

// traffic counts the bytes that a node has received and sent, and their rates in
// bytes per second. A rate is negative while it is unknown.
type traffic struct{ In, Out, InRate, OutRate float64 }

// pod is a pod of the cluster.
type pod struct {
	Namespace, Name, Node, Status string
	Ready, Containers, Restarts   int
	Started                       time.Time
	CPU, Memory                   float64 // cores, bytes; negative if unknown
}

// pull is an image that a pod waits for.
type pull struct {
	Pod, Node, Image string
	Since            time.Time
}

// event is a Kubernetes warning.
type event struct {
	At                      time.Time
	Object, Reason, Message string
	Count                   int
}

// objects holds the API server's answers.
type objects struct {
	nodes struct {
		Items []struct {
			Metadata struct {
				Name   string
				Labels map[string]string
			}
			Status struct {
				Capacity   map[string]string
				Conditions []struct{ Type, Status string }
			}
		}
	}
	pods struct {
		Items []podObject
	}
	warnings, pulling struct {
		Items []eventObject
	}
	nodeUse struct {
		Items []struct {
			Metadata struct{ Name string }
			Usage    map[string]string
		}
	}
	podUse struct {
		Items []struct {
			Metadata   struct{ Namespace, Name string }
			Containers []struct{ Usage map[string]string }
		}
	}
}

type podObject struct {
	Metadata struct {
		Namespace, Name   string
		DeletionTimestamp time.Time
	}
	Spec struct {
		NodeName   string
		Containers []struct{}
	}
	Status struct {
		Phase, Reason     string
		StartTime         time.Time
		ContainerStatuses []containerStatus
	}
}

type containerStatus struct {
	Ready        bool
	RestartCount int
	Image        string
	State        struct {
		Waiting    *struct{ Reason string }
		Terminated *struct{ Reason string }
	}
}

// awaits reports whether a container of this image has not started. The image is one that
// the node has begun to pull.
func (c containerStatus) awaits(image string) bool {
	return c.Image == image && c.State.Waiting != nil && c.State.Waiting.Reason == "ContainerCreating"
}

type eventObject struct {
	InvolvedObject struct{ Kind, Namespace, Name string }
	Reason         string
	Message        string
	LastTimestamp  time.Time
	EventTime      time.Time
	Count          int
}

func (e eventObject) at() time.Time {
	if e.LastTimestamp.IsZero() {
		return e.EventTime
	}
	return e.LastTimestamp
}

// readSnapshot takes a snapshot. It returns an error only if the nodes could not be
// listed; Problems lists all other failures. The snapshot has rates if an earlier one is
// given.
func readSnapshot(ctx context.Context, api API, earlier *snapshot, now func() time.Time) (*snapshot, error) {
	var o objects
	var took time.Duration
	questions := []struct {
		path string
		into any
	}{
		{"/api/v1/nodes", &o.nodes},
		{"/api/v1/pods", &o.pods},
		{"/api/v1/events?resourceVersion=0&fieldSelector=type%3DWarning", &o.warnings},
		{"/api/v1/events?resourceVersion=0&fieldSelector=reason%3DPulling", &o.pulling},
		{"/apis/metrics.k8s.io/v1beta1/nodes", &o.nodeUse},
		{"/apis/metrics.k8s.io/v1beta1/pods", &o.podUse},
	}
	errs := make([]error, len(questions))
	began := now()
	var asking sync.WaitGroup
	for i, q := range questions {
		asking.Go(func() {
			errs[i] = api.Get(ctx, q.path, q.into)
			if q.into == &o.pods {
				took = now().Sub(began)
			}
		})
	}
	asking.Wait()
	if errs[0] != nil {
		return nil, errs[0]
	}
	s := &snapshot{At: now(), Left: -1, Took: took}
	for _, err := range errs {
		if err != nil {
			s.Problems = append(s.Problems, err.Error())
		}
	}
	s.addNodes(&o)
	s.addPods(&o)
	s.addEvents(&o)
	if err := s.addPages(ctx, api); err != nil {
		s.Problems = append(s.Problems, err.Error())
	}
	s.compare(earlier)
	return s, nil
}

// addNodes adds the nodes that run pods: Nodes of Slurm partitions do not.
func (s *snapshot) addNodes(o *objects) {
	for _, item := range o.nodes.Items {
		if cluster.IsVirtual(item.Metadata.Labels) {
			continue
		}
		n := node{
			Name:   item.Metadata.Name,
			CPU:    use{Used: -1, Of: quantity(item.Status.Capacity["cpu"])},
			Memory: use{Used: -1, Of: quantity(item.Status.Capacity["memory"])},
		}
		for _, condition := range item.Status.Conditions {
			n.Ready = n.Ready || condition.Type == "Ready" && condition.Status == "True"
		}
		for _, measured := range o.nodeUse.Items {
			if measured.Metadata.Name == n.Name {
				n.CPU.Used, n.Memory.Used = quantity(measured.Usage["cpu"]), quantity(measured.Usage["memory"])
			}
		}
		for _, pod := range o.pods.Items {
			if pod.Spec.NodeName == n.Name && pod.Status.Phase == "Running" {
				n.Pods++
			}
		}
		s.Nodes = append(s.Nodes, n)
	}
	slices.SortFunc(s.Nodes, func(a, b node) int { return cmp.Compare(a.Name, b.Name) })
}

func (s *snapshot) addPods(o *objects) {
	type name struct{ namespace, name string }
	use := map[name][2]float64{}
	for _, measured := range o.podUse.Items {
		var sum [2]float64
		for _, c := range measured.Containers {
			sum[0] += quantity(c.Usage["cpu"])
			sum[1] += quantity(c.Usage["memory"])
		}
		use[name{measured.Metadata.Namespace, measured.Metadata.Name}] = sum
	}
	for _, item := range o.pods.Items {
		p := pod{
			Namespace: item.Metadata.Namespace, Name: item.Metadata.Name, Node: item.Spec.NodeName,
			Status: item.status(), Containers: len(item.Spec.Containers), Started: item.Status.StartTime,
			CPU: -1, Memory: -1,
		}
		for _, c := range item.Status.ContainerStatuses {
			p.Restarts += c.RestartCount
			if c.Ready {
				p.Ready++
			}
		}
		if measured, known := use[name{p.Namespace, p.Name}]; known {
			p.CPU, p.Memory = measured[0], measured[1]
		}
		s.Pods = append(s.Pods, p)
	}
}

// status describes in one word the state of a pod, or the reason why it does not run.
func (p podObject) status() string {
	if !p.Metadata.DeletionTimestamp.IsZero() {
		return "Terminating"
	}
	for _, c := range p.Status.ContainerStatuses {
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			return c.State.Waiting.Reason
		case c.State.Terminated != nil && c.State.Terminated.Reason != "" && p.Status.Phase != "Running":
			return c.State.Terminated.Reason
		}
	}
	return cmp.Or(p.Status.Reason, p.Status.Phase)
}

// addEvents adds warnings, and the images that pods wait for.
func (s *snapshot) addEvents(o *objects) {
	for _, item := range o.warnings.Items {
		s.Events = append(s.Events, event{
			At: item.at(), Object: strings.ToLower(item.InvolvedObject.Kind) + "/" + item.InvolvedObject.Name,
			Reason: item.Reason, Message: item.Message, Count: max(1, item.Count),
		})
	}
	slices.SortFunc(s.Events, func(a, b event) int { return b.At.Compare(a.At) })
	for _, item := range o.pulling.Items {
		image := item.Message
		if _, rest, ok := strings.Cut(item.Message, `"`); ok {
			image, _, _ = strings.Cut(rest, `"`)
		}
		for _, pod := range o.pods.Items {
			of := item.InvolvedObject
			if pod.Metadata.Namespace != of.Namespace || pod.Metadata.Name != of.Name {
				continue
			}
			if slices.ContainsFunc(pod.Status.ContainerStatuses, func(c containerStatus) bool { return c.awaits(image) }) {
				s.Pulls = append(s.Pulls, pull{Pod: of.Name, Node: pod.Spec.NodeName, Image: image, Since: item.at()})
			}
		}
	}
}

// addPages adds the metrics of all ready nodes. The error joins the errors of all nodes.
func (s *snapshot) addPages(ctx context.Context, api API) error {
	errs := make([]error, len(s.Nodes))
	lefts := make([]time.Duration, len(s.Nodes))
	var reading sync.WaitGroup
	for i := range s.Nodes {
		n := &s.Nodes[i]
		lefts[i] = -1
		n.Between, n.Outside = traffic{InRate: -1, OutRate: -1}, traffic{InRate: -1, OutRate: -1}
		if !n.Ready {
			continue
		}
		reading.Go(func() {
			text, err := api.Text(ctx, metrics.Path(n.Name))
			if err != nil {
				errs[i] = fmt.Errorf("node %s: %w", n.Name, err)
				return
			}
			sums := metrics.Sums(text)
			n.Between.In, n.Between.Out = sums["berth_overlay_received_bytes_total"], sums["berth_overlay_sent_bytes_total"]
			n.Outside.In, n.Outside.Out = sums["berth_egress_to_pods_bytes_total"], sums["berth_egress_from_pods_bytes_total"]
			n.Images = use{sums["berth_image_received_bytes"], sums["berth_image_expected_bytes"]}
			n.Dropped = uint64(sums["berth_overlay_dropped_packets_total"])
			if left, known := sums["berth_job_left_seconds"]; known {
				lefts[i] = time.Duration(left) * time.Second
			}
		})
	}
	reading.Wait()
	s.Left = slices.Max(append(lefts, -1))
	return errors.Join(errs...)
}

// compare sets rates from the increases since an earlier snapshot.
func (s *snapshot) compare(earlier *snapshot) {
	if earlier == nil || !s.At.After(earlier.At) {
		return
	}
	took := s.At.Sub(earlier.At).Seconds()
	rate := func(before, now float64) float64 { return max(0, now-before) / took }
	for i := range s.Nodes {
		n := &s.Nodes[i]
		at := slices.IndexFunc(earlier.Nodes, func(e node) bool { return e.Name == n.Name })
		if at < 0 || !n.Ready || !earlier.Nodes[at].Ready {
			continue
		}
		e := earlier.Nodes[at]
		n.Between.InRate, n.Between.OutRate = rate(e.Between.In, n.Between.In), rate(e.Between.Out, n.Between.Out)
		n.Outside.InRate, n.Outside.OutRate = rate(e.Outside.In, n.Outside.In), rate(e.Outside.Out, n.Outside.Out)
	}
}

// quantity parses a Kubernetes quantity, and returns 0 if it is malformed.
func quantity(text string) float64 {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0
	}
	return q.AsApproximateFloat64()
}
