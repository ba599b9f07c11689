package kinds

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Status is the status of an object of any kind. The first five fields have the operators'
// names, and SetOperatorFields sets the fields that a kind has.
type Status struct {
	JobStatus      string `json:"jobstatus,omitempty"`      // BridgeJob
	StartTime      string `json:"starttime,omitempty"`      // BridgeJob
	CompletionTime string `json:"completiontime,omitempty"` // BridgeJob
	Status         string `json:"status,omitempty"`         // SlurmJob, WlmJob
	Message        string `json:"message,omitempty"`

	// ObservedGeneration is the generation of the object that JobID was submitted for, or
	// that was rejected.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Prepared is the generation of the object whose inputs were copied.
	Prepared int64 `json:"prepared,omitempty"`
	// State is a state of Slurm, Waiting or Rejected.
	State string `json:"state,omitempty"`
	// JobID is the number of the Slurm job. It is stored before the job may start.
	JobID string `json:"jobID,omitempty"`
	// Released is true once the held job has been released.
	Released  bool   `json:"released,omitempty"`
	Partition string `json:"partition,omitempty"`
	Nodes     string `json:"nodes,omitempty"`
	// Reason is Slurm's reason why the job waits, or why it ended.
	Reason   string `json:"reason,omitempty"`
	ExitCode *int   `json:"exitCode,omitempty"`
	Signal   int    `json:"signal,omitempty"`
	Restarts int    `json:"restarts,omitempty"`
	// Times are in RFC 3339, in UTC.
	Submitted     string `json:"submitted,omitempty"`
	Started       string `json:"started,omitempty"`
	Ended         string `json:"ended,omitempty"`
	ExpectedStart string `json:"expectedStart,omitempty"`
	// Elapsed is the run time of a job that has ended, such as 1h2m3s.
	Elapsed string `json:"elapsed,omitempty"`
	// Results is empty if the object has no results, or its job has not ended.
	Results string `json:"results,omitempty"`
	// Output is the path of the job's standard output on the hosts of the Slurm cluster.
	Output string `json:"output,omitempty"`
	// OutputSeal proves that the controller wrote Output.
	OutputSeal string `json:"outputSeal,omitempty"`
}

// States of objects whose job Slurm does not run yet.
const (
	// Waiting means that the job is not submitted or not released yet.
	Waiting = "WAITING"
	// Rejected means that the object gets no job unless its spec is changed.
	Rejected = "REJECTED"
)

// States of the results of a job that has ended.
const (
	Collecting   = "COLLECTING"
	Collected    = "COLLECTED"
	NotCollected = "FAILED"
)

// outcome holds the operators' words for a state, and whether a job in this state has ended.
type outcome struct {
	bridge, wlm string
	ended       bool
}

// outcomes maps a state to its outcome. squeue(1) and sacct(1) list Slurm's states. The
// operators document their words.
var outcomes = map[string]outcome{
	Waiting:  {"SUBMITTED", "Pending", false},
	Rejected: {"FAILED", "Failed", false},

	"PENDING":       {"PENDING", "Pending", false},
	"REQUEUED":      {"PENDING", "Pending", false},
	"REQUEUE_FED":   {"PENDING", "Pending", false},
	"REQUEUE_HOLD":  {"PENDING", "Pending", false},
	"RESV_DEL_HOLD": {"PENDING", "Pending", false},
	"SPECIAL_EXIT":  {"PENDING", "Pending", false},
	"CONFIGURING":   {"PENDING", "Pending", false},
	"RUNNING":       {"RUNNING", "Running", false},
	"COMPLETING":    {"RUNNING", "Running", false},
	"SIGNALING":     {"RUNNING", "Running", false},
	"STAGE_OUT":     {"RUNNING", "Running", false},
	"RESIZING":      {"RUNNING", "Running", false},
	"STOPPED":       {"SUSPENDED", "Running", false},
	"SUSPENDED":     {"SUSPENDED", "Running", false},

	"COMPLETED":     {"DONE", "Succeeded", true},
	"CANCELLED":     {"KILLED", "Failed", true},
	"FAILED":        {"FAILED", "Failed", true},
	"TIMEOUT":       {"FAILED", "Failed", true},
	"NODE_FAIL":     {"FAILED", "Failed", true},
	"OUT_OF_MEMORY": {"FAILED", "Failed", true},
	"PREEMPTED":     {"FAILED", "Failed", true},
	"BOOT_FAIL":     {"FAILED", "Failed", true},
	"DEADLINE":      {"FAILED", "Failed", true},
	"LAUNCH_FAILED": {"FAILED", "Failed", true},
	"RECONFIG_FAIL": {"FAILED", "Failed", true},
	"REVOKED":       {"FAILED", "Failed", true},
	"UNKNOWN":       {"UNKNOWN", "Failed", true}, // queue.Unknown: the end was not recorded
}

// Ended reports whether a job in a state has ended. Waiting and Rejected objects have not.
func Ended(state string) bool { return outcomes[state].ended }

// Phase returns the phase of a pod that stands for a job in a state.
func Phase(state string) corev1.PodPhase {
	words, known := outcomes[state]
	if !known { // a state of a later Slurm
		return corev1.PodRunning
	}
	return corev1.PodPhase(words.wlm)
}

// SetOperatorFields sets the fields of the kind's operator from the other fields.
func (s *Status) SetOperatorFields(kind Kind) {
	words, known := outcomes[s.State]
	if !known { // a state of a later Slurm
		words = outcome{"UNKNOWN", "Running", false}
	}
	// Whoever waits for the end reads the results then.
	switch s.Results {
	case Collecting:
		words.bridge, words.wlm = "RUNNING", "Running"
	case NotCollected:
		words.wlm = "Failed"
		if words.bridge == "DONE" {
			words.bridge = "FAILED"
		}
	}
	if kind != BridgeJob {
		s.Status, s.JobStatus, s.StartTime, s.CompletionTime = words.wlm, "", "", ""
		return
	}
	s.JobStatus, s.StartTime, s.CompletionTime = words.bridge, s.Started, s.Ended
}

// Time formats a time for a status. It returns "" for the zero time.
func Time(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// StatusOf decodes the status of an object. A missing status is zero. The controller calls it for
// every unfinished object every few seconds, and a conversion by way of JSON takes five times as
// long.
func StatusOf(object *unstructured.Unstructured) (Status, error) {
	var status Status
	fields, _, err := unstructured.NestedFieldNoCopy(object.Object, "status")
	if err == nil && fields != nil {
		values, ok := fields.(map[string]any)
		if !ok {
			return Status{}, fmt.Errorf("status of %s: it is %T", object.GetName(), fields)
		}
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(values, &status)
	}
	if err != nil {
		return Status{}, fmt.Errorf("status of %s: %w", object.GetName(), err)
	}
	return status, nil
}
