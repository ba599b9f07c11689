package system

import (
	"context"
	"slices"
	"time"

	"berth.dev/berth/bench/internal/deliver"
	"berth.dev/berth/bench/internal/record"
)

// Placeholders in a task's arguments, which a driver replaces.
const (
	// ServerHere stands for the address of the task's server.
	ServerHere = "{server}"
	// FolderHere stands for the folder of the task's storage.
	FolderHere = "{folder}"
)

// Task is a program to run once, on the first host, in the system's own way.
type Task struct {
	Args     []string
	CPUs     int
	MemoryMB int
	// Folder is the storage that the program works on.
	Folder Folder
	Server *Server
	// Connects marks a task that measures connections, so that the share with the fast
	// path is recorded.
	Connects bool
	// Alone marks a task that measures the start of its environment, and so cannot share
	// an environment with other tasks.
	Alone bool
	// Window makes the driver record the machine's activity while the program runs.
	Window bool
	// Images are delivered instead of a program; Args is empty then.
	Images *Images
	// Sequence runs instead of a program; Args is empty then.
	Sequence *Sequence
}

// Images describes images that are delivered to nodes one after the other, and their work
// there.
type Images struct {
	// Names lists names in the folder of images, without the suffix of a format.
	Names []string
	Work  deliver.Work
	// Fresh delivers each image to empty nodes. Only the folder that runs share is not
	// empty: all of the images have been delivered to it before.
	Fresh bool
	Nodes int
	// BitsPerSecond and Delay configure the connection to the registry. A rate of 0 means
	// no limit.
	BitsPerSecond float64
	Delay         time.Duration
	// WorkerMB is a worker's memory in MB; 0 means no workers.
	WorkerMB int
}

// Folder is a kind of storage.
type Folder string

// The kinds of storage.
const (
	NoFolder Folder = ""
	Scratch  Folder = "scratch"   // a folder of the host
	EmptyDir Folder = "empty-dir" // an emptyDir volume of the pod
	Root     Folder = "root"      // the root file system of the container
	Claim    Folder = "claim"     // a PersistentVolumeClaim
)

// Server is a program that a task connects to.
type Server struct {
	Args []string
	Port int
	At   Where
	// UDP is set if the server uses the port with UDP besides TCP; UDPOnly omits TCP.
	UDP, UDPOnly bool
}

// is reports whether two tasks have the same server.
func (s *Server) is(other *Server) bool {
	return s.Port == other.Port && slices.Equal(s.Args, other.Args)
}

// Where is the place of a server.
type Where string

// The places of servers.
const (
	OnHost    Where = "host"    // on bare metal, on the second host
	InPod     Where = "pod"     // in the same system, on the second host
	InService Where = "service" // like InPod, behind a Service
)

// Output is a task's output.
type Output struct {
	Stdout string
	// Said is the task's standard error.
	Said string
	// Submitted, First and Ended are the times when the command was started, when its
	// first byte of output arrived, and when it ended.
	Submitted, First, Ended time.Time
	Step                    record.Step
	// Values holds figures of the system, in addition to the program's figures.
	Values []record.Value
}

// Driver runs tasks in one way. A driver that cannot run a task returns an
// Unsupported error, and does not get the task again.
type Driver interface {
	// Check returns the versions of the driver's requirements. The error names
	// what is missing and how to get it.
	Check(ctx context.Context) (map[string]string, error)
	// Prepare does what a site would have done before, such as placing images. It is
	// called once and is not measured. Close undoes Prepare.
	Prepare(ctx context.Context) error
	Run(ctx context.Context, task Task) (Output, error)
	Close(ctx context.Context) error
}

// Result is the result of one of several tasks.
type Result struct {
	Output Output
	Err    error
	// Start and Took are set for a task that ran by itself, and zero for one that shared
	// a cluster.
	Start time.Time
	Took  time.Duration
}

// Together is a driver that can run several tasks one after the other in one cluster. It
// returns a result for each.
type Together interface {
	RunTogether(ctx context.Context, tasks []Task) []Result
}

// Unsupported is the error for a task that a system cannot run.
type Unsupported struct{ Reason string }

func (u *Unsupported) Error() string { return u.Reason }
