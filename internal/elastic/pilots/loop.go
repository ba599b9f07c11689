package pilots

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/job/slurm"
)

const (
	// settle is the time without changes that a pass waits for, so that the pods of a new Deployment
	// share pilots, and settleLimit bounds the wait.
	settle, settleLimit = 300 * time.Millisecond, time.Second
	// judgeLimit bounds the wait of a pilot for the scheduler, which may not have looked at all pods
	// of a Deployment yet. Older pods without a result of the scheduler may be of another scheduler.
	judgeLimit = 3 * time.Second
	// longestIdle bounds the time between two passes.
	longestIdle = 10 * time.Second
	// joinLimit bounds the time from the start of a job until its nodes are ready.
	joinLimit = 3 * time.Minute
	// placeLimit bounds the time until the scheduler has tried a pod on a new node: at most ten
	// seconds pass between two tries.
	placeLimit = 15 * time.Second
	// unneededFor is the delay before a pending job without pods is cancelled. A rolling update
	// deletes pods before their successors wait, and a new job is last in the queue.
	unneededFor = 10 * time.Second
	// firstPause and longestPause bound the time until a request to Slurm is repeated, or another
	// pilot is submitted after one that failed.
	firstPause, longestPause = 5 * time.Second, 5 * time.Minute
	// refusedFor is the pause until a request that Slurm refused is repeated.
	refusedFor = 5 * time.Minute
	// longestHeld bounds the time until another pilot is submitted for a pod that the scheduler has
	// placed on none, or for a controller whose pods fail soon after their start.
	longestHeld, soon = time.Hour, time.Minute
	// endLimit bounds the time for requests that have begun when the loop ends.
	endLimit = 5 * time.Second
	// workers is the number of pilots that are handled at the same time.
	workers = 8
)

// Slurm submits jobs and reports their states. queue.Client implements it.
type Slurm interface {
	// Submit submits the held job that prepare returns, or finds the job of an earlier call
	// without calling prepare. It returns the job's number.
	Submit(ctx context.Context, uid, version string, prepare func() (queue.Job, error)) (id string, err error)
	// Find returns the number of the job that was submitted for a pilot.
	Find(ctx context.Context, uid string) (id string, found bool, err error)
	// Release lets a held job start, and Cancel cancels a job. They return nil if the job
	// has ended.
	Release(ctx context.Context, id string) error
	Cancel(ctx context.Context, id string) error
	// States returns the states of jobs, by the UIDs of their pilots.
	States(ctx context.Context, jobs map[string]string) (map[string]queue.State, error)
}

// Options configures a Loop.
type Options struct {
	// Config connects to the API server.
	Config *rest.Config
	// Job is the number of the cluster's job.
	Job string
	// Seats is the number of nodes of other jobs that the cluster takes.
	Seats int
	// Idle is the time after which a node without pods leaves.
	Idle  time.Duration
	Slurm Slurm
	// Test asks Slurm whether it would ever start a job. Forget removes the files of a pilot whose
	// job has ended. Submitted returns the jobs of this user that Slurm.Submit has submitted,
	// possibly in another process.
	Test      func(ctx context.Context, job queue.Job) error
	Forget    func(uid string) error
	Submitted func(ctx context.Context) ([]queue.State, error)
	// Ask runs other commands of Slurm.
	Ask slurm.Ask
	Node
	// Interval is the time between two calls of Slurm.States.
	Interval time.Duration
	Log      *slog.Logger
}

// pilot is a pilot, as the loop knows it.
type pilot struct {
	record
	// saved is the part of the record that the cluster has. exists is false before it has any.
	saved  status
	exists bool
	// pods is the number of pods that the pilot was planned for, and seen the number of its nodes
	// that have been ready. awaitedBy holds the pods that have waited for it.
	pods, seen int
	awaitedBy  map[types.UID]bool
	// busy is true while a worker handles the pilot. No worker does before next.
	busy  bool
	next  time.Time
	pause time.Duration
	// problem is the reason why the job is not submitted yet, after an error.
	problem string
	// unneeded and idle are the times since which no pod needs the pilot, or no pod is on its
	// nodes, and joining the time since which its job runs with a node that has not been ready. They
	// are zero otherwise.
	unneeded, idle, joining time.Time
	// idling is true for a pilot that is to leave because it is idle. closed is true if a loop has
	// closed a node of it to new pods.
	idling, closed bool
	// arrived is the time when the last node became ready, if this loop has seen it.
	arrived time.Time
	// failed is true once the only pod that the pilot is for has failed.
	failed bool
	// final is the state of a job that has ended.
	final *queue.State
}

// Loop submits and ends the pilots of one cluster.
type Loop struct {
	Options
	core   core.CoreV1Interface
	view   *view
	owners *owners
	events *events
	// wake starts a pass, arrived starts the reading of the objects above new pods, and known the opening of
	// gates.
	wake, arrived, known chan struct{}

	mu     sync.Mutex
	pilots map[string]*pilot
	// settled is set once the pilots without a record are known. One of them may be for a pod that
	// waits, so no new ones are planned before.
	settled bool
	// refusals holds the requests that Slurm has refused, and failures the pilots that ended before
	// a node was ready, by group.
	refusals []refusal
	failures map[string]*failure
	// held holds the pods, and the controllers of pods, that get no new pilot for a time.
	held map[types.UID]*failure
	// tested holds the requests that Slurm would start, and until when it is not asked again.
	tested map[string]time.Time
	// fewer limits the pods in a pilot, by group, after larger ones were refused.
	fewer map[string]limit
	// inMemory holds the options of pilots whose nodes had less memory than was requested, and until
	// when the next ones request more.
	inMemory map[string]time.Time
	// No job is submitted before nextSubmit. submitPause is the pause after the last submission, if
	// that failed.
	nextSubmit  time.Time
	submitPause time.Duration
	// delayed is the time since which new pilots wait for the scheduler, or zero.
	delayed time.Time
	// partitions is the result of sinfo, of the time asked.
	partitions []slurm.Partition
	asked      time.Time
}

// refusal is a request that Slurm has refused.
type refusal struct {
	plan.Request
	reason string
	until  time.Time
}

// limit is the largest number of pods in a pilot, for a time.
type limit struct {
	pods  int
	until time.Time
}

// New returns a loop. It sends no requests.
func New(options Options) (*Loop, error) {
	client, err := core.NewForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	l := &Loop{
		Options: options, core: client, wake: make(chan struct{}, 1), arrived: make(chan struct{}, 1), known: make(chan struct{}, 1),
		pilots: map[string]*pilot{}, failures: map[string]*failure{}, held: map[types.UID]*failure{},
		tested: map[string]time.Time{}, fewer: map[string]limit{}, inMemory: map[string]time.Time{},
	}
	if l.owners, err = newOwners(options.Config); err != nil {
		return nil, err
	}
	l.events = newEvents(client, options.Log)
	l.view = newView(client, func() { l.changed(); signal(l.arrived) })
	return l, nil
}

// changed makes the loop look at the cluster soon.
func (l *Loop) changed() { signal(l.wake) }

// signal wakes the reader of a channel with room for one value.
func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// ErrReturns is the cause of a context that ends because the cluster's job starts again.
var ErrReturns = errors.New("the cluster's job starts again")

// Run submits and ends pilots until ctx ends. Then it cancels the pilots that have not started,
// unless the cause is ErrReturns. The others learn from the cluster that it ends. Requests that have
// begun are awaited for endLimit.
func (l *Loop) Run(ctx context.Context) error {
	if err := l.load(ctx); err != nil {
		return err
	}
	// A request to Slurm that is cut off has an unknown result.
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, following := errgroup.WithContext(ctx)
	group.Go(func() error { return l.view.run(following) })
	group.Go(func() error { l.events.run(following); return nil })
	group.Go(func() error { l.poll(following); return nil })
	group.Go(func() error { l.settleStrangers(following); return nil })
	group.Go(func() error { l.readOwners(following); return nil })
	group.Go(func() error { l.openGates(following); return nil })
	var work errgroup.Group
	work.SetLimit(workers)
	if l.view.awaitSync(following) {
		l.repeat(following, working, &work)
	}
	err := group.Wait()
	done := make(chan struct{})
	go func() { _ = work.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(endLimit):
	}
	stop()
	if errors.Is(context.Cause(ctx), ErrReturns) {
		return err
	}
	return errors.Join(err, l.cancelPending(context.WithoutCancel(ctx)))
}

// repeat makes passes until ctx ends.
func (l *Loop) repeat(ctx, working context.Context, work *errgroup.Group) {
	for {
		l.pass(ctx)
		l.startWork(working, work)
		idle := time.NewTimer(l.untilNext())
		select {
		case <-l.wake:
			l.awaitQuiet(ctx)
		case <-idle.C:
		case <-ctx.Done():
		}
		idle.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// awaitQuiet returns when nothing has changed for settle, or after settleLimit.
func (l *Loop) awaitQuiet(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for {
		select {
		case <-l.wake:
		case <-time.After(settle):
			return
		case <-ctx.Done():
			return
		}
	}
}

// untilNext returns the time until the next pass, if nothing changes.
func (l *Loop) untilNext() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.delayed.IsZero() {
		return time.Second
	}
	for _, p := range l.pilots {
		if !p.idle.IsZero() || !p.started() || p.hasWork() {
			return time.Second // a pause or an idle time may end
		}
	}
	return longestIdle
}

// startWork lets workers handle the pilots that have something to do.
func (l *Loop) startWork(ctx context.Context, work *errgroup.Group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, p := range l.pilots {
		submits := p.Job == "" && !p.Leaving
		if p.busy || now.Before(p.next) || submits && now.Before(l.nextSubmit) || !p.hasWork() {
			continue
		}
		p.busy = true
		if !work.TryGo(func() error { l.advance(ctx, p); return nil }) {
			p.busy = false
			return // the next pass begins when a worker has finished
		}
	}
}

// pass looks at the cluster and at Slurm once, and decides what becomes of each pilot.
func (l *Loop) pass(ctx context.Context) {
	l.askPartitions(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	in := l.input(now)
	l.holdAfterFailures(in.failed, now)
	for i, pod := range in.Waiting {
		in.Waiting[i].Held = l.heldFor(pod, now)
	}
	result := plan.Make(in.Input)
	if l.delays(len(result.New) > 0 && in.unjudged, now) || !l.settled {
		result.New = nil
	}
	for i, request := range result.New {
		request.Size = l.round(request.Size)
		p := &pilot{record: record{UID: l.newUID(), Request: request}, pods: len(result.NewFor[i])}
		l.pilots[p.UID] = p
		for _, pod := range result.NewFor[i] {
			result.For[pod] = p.UID
		}
		l.Log.Info("a pilot is needed", "pilot", p.UID, "pods", p.pods, "milliCPU", request.Size.MilliCPU, "memory", request.Size.Memory, "nodes", request.Nodes)
	}
	needed := map[string]bool{}
	for pod, uid := range result.For {
		needed[uid] = true
		l.pilots[uid].await(pod)
	}
	for uid, p := range l.pilots {
		l.judge(p, needed[uid], in, now)
	}
	l.explain(in, result)
}

// newUID returns the name of a new pilot.
func (l *Loop) newUID() string {
	return prefixOf(l.Job) + strings.ToLower(rand.Text()[:8])
}

// poll reads the states of jobs at the interval until ctx ends. One call of squeue serves all.
func (l *Loop) poll(ctx context.Context) {
	tick := time.NewTicker(l.Interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		l.readStates(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// readStates reads the states of all jobs.
func (l *Loop) readStates(ctx context.Context) {
	jobs := map[string]string{}
	l.mu.Lock()
	for uid, p := range l.pilots {
		if p.Job != "" && p.final == nil {
			jobs[uid] = p.Job
		}
	}
	l.mu.Unlock()
	if len(jobs) == 0 {
		return
	}
	states, err := l.Slurm.States(ctx, jobs)
	if err != nil {
		if ctx.Err() == nil {
			l.Log.Debug("read the states of pilots: " + err.Error())
		}
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, state := range states {
		if p := l.pilots[uid]; p != nil && p.Job == state.ID {
			l.note(p, state)
		}
	}
	l.changed()
}
