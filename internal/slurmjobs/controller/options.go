package controller

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// Slurm submits jobs and reports their states. queue.Client implements it.
type Slurm interface {
	// Submit submits the held job that prepare returns for a version of an object, or finds
	// the job of an earlier call without calling prepare. It returns the job's number.
	Submit(ctx context.Context, uid, version string, prepare func() (queue.Job, error)) (id string, err error)
	// Find returns the number of the job that was submitted for an object, even if the
	// job has ended, until its records are removed.
	Find(ctx context.Context, uid string) (id string, found bool, err error)
	// Release lets a held job start, and Cancel cancels a job. They return nil if the job
	// has ended.
	Release(ctx context.Context, id string) error
	Cancel(ctx context.Context, id string) error
	// States returns the states of jobs, by the UIDs of their objects. jobs maps the UIDs
	// to the numbers of the jobs.
	States(ctx context.Context, jobs map[string]string) (map[string]queue.State, error)
}

// Options configures a Controller.
type Options struct {
	// Config connects to the API server.
	Config *rest.Config
	// Namespace holds the objects. Empty means all namespaces.
	Namespace string
	// LeaseNamespace holds the lease of the leading controller.
	LeaseNamespace string
	// Identity names this process in the lease.
	Identity string
	Slurm    Slurm
	// Forget removes the records of an object whose job has ended.
	Forget func(uid string) error
	// Prepare returns the job for an object. Its errors reject the object, except for
	// temporary errors of a file system and errors that wrap Temporary.
	Prepare func(ctx context.Context, object *unstructured.Unstructured, request kinds.Request) (queue.Job, error)
	// Allow returns an error if an object gets no job. An error that wraps
	// trust.ErrForbidden rejects the object. After other errors the controller tries again.
	// If Allow is nil, every object gets a job.
	Allow func(ctx context.Context, object *unstructured.Unstructured) error
	// Beside runs while this controller leads, until its context ends. It may be nil.
	Beside func(ctx context.Context)
	// Changed is called for each object when this controller begins to lead, and when the
	// object changes. PodProblem returns the reason why an object has no pod, or "". Either may
	// be nil.
	Changed    func(kinds.Reference)
	PodProblem func(kinds.Reference) string
	// Seal returns a proof for the status that this controller wrote the path of an output. If
	// it is nil, there is no proof.
	Seal func(uid, path string) string
	// Fetch copies the inputs of an object, before its job is submitted. It returns a
	// description of them. The controller calls it again after errors that do not wrap
	// results.Final. If Fetch is nil, Prepare returns an error for objects with inputs.
	Fetch func(ctx context.Context, object *unstructured.Unstructured, request kinds.Request, job queue.Job) (string, error)
	// Collect collects the results of an object whose job has ended, and returns a
	// description of them. The controller calls it again after errors that do not wrap
	// results.Final. After an error that wraps Unfinished, the objects that wait come first. A
	// panic of Collect counts as an error. Its context ends when the object is deleted or edited.
	Collect func(ctx context.Context, object *unstructured.Unstructured) (string, error)
	// Interval is the time between two calls of Slurm.States.
	Interval time.Duration
	// As in leaderelection.LeaderElectionConfig. Tests shorten them.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	Log                                       *slog.Logger
}

// Default returns options with defaults, where there are any.
func Default() Options {
	return Options{
		Interval:      5 * time.Second,
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Log: slog.New(slog.DiscardHandler),
	}
}
