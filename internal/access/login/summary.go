package login

import (
	"context"
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
	for _, node := range nodes.Items {
		if cluster.IsVirtual(node.Metadata.Labels) {
			continue
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
