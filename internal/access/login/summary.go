package login

import (
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"time"

	"berth.dev/berth/internal/base/cluster"
)

// Summary is the state of a cluster in a few numbers.
type Summary struct {
	Nodes []NodeState
	// Pods counts the pods by phase. Waiting counts the unfinished pods that are
	// not ready, by Kubernetes' reason.
	Pods    map[string]int
	Waiting map[string]int
	// Seats is the number of nodes of other jobs that the cluster takes, and FreeSeats the number
	// that no node and no pilot has. Both are 0 without --elastic. Pilots holds the jobs that pods
	// have brought, by number.
	Seats, FreeSeats int
	Pilots           []Pilot
}

// Pilot is a job that pods have brought. State, Reason and Start are Slurm's, and Start is when it
// expects a pending job to start.
type Pilot struct {
	Job     string `json:"job"`
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"`
	Start   string `json:"expectedStart,omitempty"`
	Hosts   string `json:"hosts,omitempty"`
	Nodes   int    `json:"nodes"`
	Leaving bool   `json:"leaving,omitempty"`
}

// NodeState describes a node. Lost reports that the run has given it up.
type NodeState struct {
	Name        string
	Ready, Lost bool
}

// lostTaint is Kubernetes' taint on a node that a run has lost.
const lostTaint = "node.kubernetes.io/out-of-service"

// summaryLimit bounds the time for a summary.
const summaryLimit = 20 * time.Second

// summarise requests a summary from the cluster of a session. It needs only two
// lists, and a Kubernetes client would make the program larger.
func (s *Session) summarise(ctx context.Context) (Summary, error) {
	ctx, cancel := context.WithTimeout(ctx, summaryLimit)
	defer cancel()
	api, err := s.API()
	if err != nil {
		return Summary{}, err
	}
	defer api.Close()
	var nodes struct {
		Items []struct {
			Metadata struct {
				Name   string
				Labels map[string]string
			}
			Spec   struct{ Taints []struct{ Key string } }
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := api.Get(ctx, "/api/v1/nodes", &nodes); err != nil {
		return Summary{}, err
	}
	var pods struct {
		Items []struct {
			Status struct {
				Phase             string
				ContainerStatuses []struct {
					State struct{ Waiting struct{ Reason string } }
				}
			}
		}
	}
	if err := api.Get(ctx, "/api/v1/pods", &pods); err != nil {
		return Summary{}, err
	}
	summary := Summary{Pods: map[string]int{}, Waiting: map[string]int{}}
	own, err := summary.readPilots(ctx, api)
	if err != nil {
		return Summary{}, err
	}
	for _, node := range nodes.Items {
		if cluster.IsVirtual(node.Metadata.Labels) {
			continue
		}
		job := node.Metadata.Labels[jobLabel]
		if job != "" && job != own && !slices.ContainsFunc(summary.Pilots, func(p Pilot) bool { return p.Job == job }) {
			summary.FreeSeats-- // 'berth join' by hand
		}
		state := NodeState{Name: node.Metadata.Name}
		for _, condition := range node.Status.Conditions {
			state.Ready = state.Ready || condition.Type == "Ready" && condition.Status == "True"
		}
		for _, taint := range node.Spec.Taints {
			state.Lost = state.Lost || taint.Key == lostTaint
		}
		summary.Nodes = append(summary.Nodes, state)
	}
	for _, pod := range pods.Items {
		summary.Pods[pod.Status.Phase]++
		if ended(pod.Status.Phase) {
			continue // a container that never started still has the state Waiting
		}
		for _, container := range pod.Status.ContainerStatuses {
			if reason := container.State.Waiting.Reason; reason != "" {
				summary.Waiting[reason]++
				break
			}
		}
	}
	return summary, nil
}

// jobLabel is the label of a node with the number of its job.
const jobLabel = "slurm.berth.dev/job"

// readPilots reads the jobs that pods have brought, and the seats that they leave free. It returns
// the number of the cluster's job, or "" without --elastic.
func (s *Summary) readPilots(ctx context.Context, api *API) (own string, err error) {
	var records struct {
		Items []struct {
			Metadata struct {
				Name   string
				Labels map[string]string
			}
			Data map[string]string
		}
	}
	if err := api.Get(ctx, "/api/v1/namespaces/kube-system/configmaps?labelSelector="+url.QueryEscape(cluster.PilotLabel), &records); err != nil {
		return "", err
	}
	taken := 0
	for _, record := range records.Items {
		data := record.Data
		if record.Metadata.Name == cluster.ElasticName {
			s.Seats, _ = strconv.Atoi(data[cluster.ElasticSeats])
			own = record.Metadata.Labels[cluster.PilotLabel]
			continue
		}
		var request struct{ Nodes int }
		_ = json.Unmarshal([]byte(data[cluster.PilotRequest]), &request) // a record that cannot be read has one node
		one := Pilot{
			Job: data[cluster.PilotJob], State: data[cluster.PilotState], Reason: data[cluster.PilotReason], Start: data[cluster.PilotStart],
			Hosts: data[cluster.PilotHosts], Nodes: max(1, request.Nodes), Leaving: data[cluster.PilotLeaving] != "",
		}
		taken += one.Nodes
		if one.Job != "" {
			s.Pilots = append(s.Pilots, one)
		}
	}
	s.FreeSeats = s.Seats - taken
	slices.SortFunc(s.Pilots, func(a, b Pilot) int {
		return cmp.Or(cmp.Compare(len(a.Job), len(b.Job)), cmp.Compare(a.Job, b.Job))
	})
	return own, nil
}

func ended(phase string) bool { return phase == "Succeeded" || phase == "Failed" }

// LivingPods counts the pods that have not ended.
func LivingPods(pods map[string]int) int {
	living := 0
	for phase, count := range pods {
		if !ended(phase) {
			living += count
		}
	}
	return living
}
