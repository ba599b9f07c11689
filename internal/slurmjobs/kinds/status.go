package kinds

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Status is the status of an object of any kind. The first five fields have the names
// that the operators gave them; a kind has only its own operator's.
type Status struct {
	JobStatus      string `json:"jobstatus,omitempty"`      // BridgeJob
	StartTime      string `json:"starttime,omitempty"`      // BridgeJob
	CompletionTime string `json:"completiontime,omitempty"` // BridgeJob
	Status         string `json:"status,omitempty"`         // SlurmJob, WlmJob
	Message        string `json:"message,omitempty"`

	// ObservedGeneration is the generation of the object that JobID was submitted for, or
	// that was rejected.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State is a state of Slurm, or one of Waiting and Rejected.
	State string `json:"state,omitempty"`
	// JobID is the number of the Slurm job. It is stored before the job may start.
	JobID string `json:"jobID,omitempty"`
	// Released is set once the job was allowed to start.
	Released  bool   `json:"released,omitempty"`
	Partition string `json:"partition,omitempty"`
	Nodes     string `json:"nodes,omitempty"`
	// Reason is Slurm's word for why the job waits, or ended.
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
	// Output is the path of the job's standard output on the cluster's hosts.
	Output string `json:"output,omitempty"`
}

// States of objects without a job.
const (
	// Waiting objects have no job yet, for a reason that may pass.
	Waiting = "WAITING"
	// Rejected objects get no job until their spec is changed.
	Rejected = "REJECTED"
)

// outcome holds the operators' words for a state.
type outcome struct {
	bridge, wlm string
	ended       bool
}

// outcomes maps a state to its outcome. The operators document the words on the right;
// squeue(1) and sacct(1) list Slurm's states.
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
	"UNKNOWN":       {"UNKNOWN", "Failed", true}, // queue.Unknown: nobody recorded the end
}

// Ended reports whether a job in this state has ended for good.
func Ended(state string) bool { return outcomes[state].ended }

// Finish sets the operators' own fields from the others.
func (s *Status) Finish(kind Kind) {
	of, known := outcomes[s.State]
	if !known { // a state of a later Slurm
		of = outcome{"UNKNOWN", "Running", false}
	}
	if kind != BridgeJob {
		s.Status, s.JobStatus, s.StartTime, s.CompletionTime = of.wlm, "", "", ""
		return
	}
	s.JobStatus, s.StartTime, s.CompletionTime = of.bridge, s.Started, s.Ended
}

// Time formats a time for a status. The zero time is empty.
func Time(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// StatusOf returns the status of an object.
func StatusOf(object *unstructured.Unstructured) (Status, error) {
	var status Status
	text, err := json.Marshal(object.Object["status"])
	if err == nil {
		err = json.Unmarshal(text, &status)
	}
	if err != nil {
		return Status{}, fmt.Errorf("status of %s: %w", object.GetName(), err)
	}
	return status, nil
}
