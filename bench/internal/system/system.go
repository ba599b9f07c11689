// Package system has the ways of running a program that are compared: each is a
// Driver. What the program is, and what its output means, belongs to the cases.
package system

import (
	"context"
	"slices"
	"time"

	"berth.dev/berth/bench/internal/deliver"
	"berth.dev/berth/bench/internal/record"
)

// Places in a task's words that a driver fills in.
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
	// Connects marks a task that measures connections, so that the maker of
	// connections is noted.
	Connects bool
	// Alone marks a task that measures the start of its environment, which must
	// be its own.
	Alone bool
	// Window: what the machine does while the program runs is noted.
	Window bool
	// Images are delivered instead of a program; Args is empty then.
	Images *Images
	// Beside runs instead of a program; Args is empty then.
	Beside *Beside
}

// Images are brought to nodes, one after the other, and work there.
type Images struct {
	// Names lists names in the folder of images, without the form.
	Names []string
	Work  deliver.Work
	// Fresh: each on nodes that have nothing, but for what the system's folder has
	// that runs share, where all were before.
	Fresh bool
	Nodes int
	// BitsPerSecond and Delay are the registry's line; 0: no limit.
	BitsPerSecond float64
	Delay         time.Duration
	// WorkerMB is a worker's memory; 0 means no workers.
	WorkerMB int
}

// Folder is a kind of storage.
type Folder string

// The kinds of storage.
const (
	NoFolder Folder = ""
	Scratch  Folder = "scratch"   // a folder of the host
	EmptyDir Folder = "empty-dir" // what a pod has for the time of its life
	Root     Folder = "root"      // the root file system of the container
	Claim    Folder = "claim"     // a PersistentVolumeClaim
)

// Server is a program that a task talks to.
type Server struct {
	Args []string
	Port int
	At   Where
	// UDP: it has that port of UDP's, beside TCP's or, where it is UDPOnly, alone.
	UDP, UDPOnly bool
}

// is reports whether two tasks mean the same program.
func (s *Server) is(other *Server) bool {
	return s.Port == other.Port && slices.Equal(s.Args, other.Args)
}

// Where is the place of a server.
type Where string

// The places of servers.
const (
	OnHost    Where = "host"    // on bare metal, on the second host
	InPod     Where = "pod"     // in the same system, on the second host
	InService Where = "service" // the same, behind a Service
)

// Output is a task's output.
type Output struct {
	Stdout string
	// Said is its standard error.
	Said string
	// Submitted, First and Ended are when the command was given, when the first
	// byte of its output came, and when it ended.
	Submitted, First, Ended time.Time
	Step                    record.Step
	// Values are the system's own figures, besides the program's.
	Values []record.Value
}

// Driver runs tasks in one way. A driver that cannot run a task returns an
// Unsupported error, and does not get the task again.
type Driver interface {
	// Check returns the versions of the driver's requirements. The error names
	// what is missing and how to get it.
	Check(ctx context.Context) (map[string]string, error)
	// Prepare does, once and untimed, what a site would have done: images are
	// where they are needed. Its undo is Close.
	Prepare(ctx context.Context) error
	Run(ctx context.Context, task Task) (Output, error)
	Close(ctx context.Context) error
}

// Result is the result of one of several tasks.
type Result struct {
	Output Output
	Err    error
	// Start and Took are of a task that was by itself; nothing of one that shared what it
	// ran in.
	Start time.Time
	Took  time.Duration
}

// Together is a driver that can run several tasks one after the other in one
// cluster. There is a result for each.
type Together interface {
	RunTogether(ctx context.Context, tasks []Task) []Result
}

// Unsupported is a task that a system cannot run, and why.
type Unsupported struct{ Reason string }

func (u *Unsupported) Error() string { return u.Reason }
