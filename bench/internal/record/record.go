// Package record defines the records of a run: a file of JSON lines. Lines are
// added and never changed. Evaluation of records belongs elsewhere.
package record

import "time"

// schema is the version of the format. Readers also accept version 1, and give its
// systems their current names.
const schema = 2

// Line is one line of a file: a session, or a result in it.
type Line struct {
	Schema     int         `json:"schema"`
	Time       time.Time   `json:"time"`
	Session    *Session    `json:"session,omitempty"`
	Trial      *Trial      `json:"trial,omitempty"`
	Unmeasured *Unmeasured `json:"unmeasured,omitempty"`
	// CutOff is the number of a line that a crash has cut off, whose content is
	// lost; otherwise 0.
	CutOff int `json:"-"`
}

// Session describes one call of the bench. A run that was interrupted and continued has
// several.
type Session struct {
	// Plan is the text of the plan's file.
	Plan  string `json:"plan"`
	Name  string `json:"name"`
	Title string `json:"title"`
	Seed  uint64 `json:"seed"`
	// Drift is the smallest relative change of the baseline that marks a run as
	// disturbed.
	Drift float64 `json:"drift"`
	// Reference is the system that others are compared with.
	Reference string `json:"reference"`
	// Versions holds the versions of berth, Slurm and each system, by name.
	Versions map[string]string `json:"versions"`
	// Before is the command that ran on each host before images were delivered.
	Before string `json:"before,omitempty"`
	// Nodes lists the measured machines; without Slurm, only the machine of the bench.
	Nodes []Machine `json:"nodes"`
	Slurm *Slurm    `json:"slurm,omitempty"`
	// Link is the plan's link between the hosts. The settings in effect are part of the
	// machines' settings.
	Link *Link `json:"link,omitempty"`

	// name maps a system's name in the plan to its current name. It is nil if no names
	// differ.
	name func(string) string
}

// LinkSetting begins the names of a network interface's settings.
const LinkSetting = "link "

// Link is the operator's setup of the network between the hosts.
type Link struct {
	Name string `json:"name"`
	Is   string `json:"is"`
	// Wanted holds the settings that the plan requests, under the names that
	// machines use, without the interface's name.
	Wanted map[string]string `json:"wanted,omitempty"`
}

// LossAlias begins the alias of an interface with packet loss. Only root may see the
// rule itself.
const LossAlias = "berth-bench loss "

// Machine describes one machine as far as it affects figures.
type Machine struct {
	Name       string `json:"name"`
	Kernel     string `json:"kernel"`
	System     string `json:"system"`
	CPU        string `json:"cpu"`
	CPUs       int    `json:"cpus"`
	Memory     int64  `json:"memory_bytes"`
	Hypervisor bool   `json:"hypervisor"`
	// Boot is the same for hosts that share one kernel.
	Boot     string            `json:"boot,omitempty"`
	Load     string            `json:"load"`
	Settings map[string]string `json:"settings"`
}

// Slurm is the job of a session.
type Slurm struct {
	Job       string `json:"job,omitempty"`
	Cluster   string `json:"cluster,omitempty"`
	Partition string `json:"partition,omitempty"`
	NodeList  string `json:"node_list,omitempty"`
}

// Phase is the purpose of a trial.
type Phase string

// The phases. Warm-ups are recorded, but count in no figure.
const (
	WarmUp         Phase = "warm-up"
	Run            Phase = "run"
	BaselineStart  Phase = "baseline-start"
	BaselineMiddle Phase = "baseline-middle"
	BaselineEnd    Phase = "baseline-end"
)

// Trial is one measurement of one case on one system.
type Trial struct {
	Case   string `json:"case"`
	Kind   string `json:"kind"` // which of the bench's cases it is
	System string `json:"system"`
	// Against is another case. This trial's figures are compared with that case's figures
	// on the reference. It is empty if they are compared within one case.
	Against string `json:"against,omitempty"`
	Phase   Phase  `json:"phase"`
	Number  int    `json:"number"`
	// Parameters holds all parameters of the case, including defaults.
	Parameters map[string]string `json:"parameters"`
	// Start is the start of the trial, and Seconds its duration. If several trials ran
	// together, Together is their number. Then they share Start, Seconds is their total
	// time divided by their number, and the step's window has the program's own time.
	Start    time.Time `json:"start"`
	Seconds  float64   `json:"seconds"`
	Together int       `json:"together,omitempty"`
	Step     Step      `json:"step"`
	Values   []Value   `json:"values,omitempty"`
	// Error is the reason why there are no values.
	Error string `json:"error,omitempty"`
	// Output is the program's output.
	Output string `json:"output,omitempty"`
}

// ID names a trial within a plan.
func (t Trial) ID() ID { return ID{t.Case, t.System, t.Phase, t.Number} }

// ID identifies a trial of a plan.
type ID struct {
	Case, System string
	Phase        Phase
	Number       int
}

// Value is one figure.
type Value struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	// Better is "higher" or "lower", whichever is better, or empty if neither is.
	Better string `json:"better,omitempty"`
	// Detail is the evidence for the answer of a check.
	Detail string `json:"detail,omitempty"`
}

// Check is the unit of a value that answers a question: 1 is yes.
const Check = "yes or no"

// Share is the name of a value: the percentage of a trial's connections that the hosts
// made, which means over the fast path.
const Share = "connections made by the hosts"

// Step describes the process of a trial.
type Step struct {
	Node       string  `json:"node,omitempty"`
	Job        string  `json:"job,omitempty"`
	CPUSeconds float64 `json:"cpu_seconds,omitempty"`
	LoadBefore string  `json:"load_before,omitempty"`
	LoadAfter  string  `json:"load_after,omitempty"`
	Window     *Window `json:"window,omitempty"`
	// Left counts the connections that the fast path left to the overlay, by reason.
	Left map[string]float64 `json:"left_to_overlay,omitempty"`
	// MPI is the implementation and version of MPI that the trial's mpirun reports. An
	// image has its own MPI.
	MPI string `json:"mpi,omitempty"`
}

// Window describes the activity of the first host's machine while the program
// ran. It covers other hosts on the same machine (Machine.Boot), too.
type Window struct {
	Seconds    float64 `json:"seconds"`
	Processors int     `json:"processors"`
	// Busy is the total busy time of the machine's processors in seconds.
	Busy float64 `json:"busy_seconds"`
}

// Unmeasured is a case that a session skipped, and the reason. An empty Case
// means all cases.
type Unmeasured struct {
	System string `json:"system"`
	Case   string `json:"case,omitempty"`
	Reason string `json:"reason"`
}
