package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"berth.dev/berth/internal/job/queue"
)

// fakeSlurm is a Slurm in memory. It outlives the controllers that a test kills.
type fakeSlurm struct {
	mu   sync.Mutex
	jobs []*fakeJob
	// unavailable is the error of every call, and refusal that of Submit, unless nil.
	unavailable, refusal error
	// quick makes jobs end as soon as they are released.
	quick bool
	// slow jobs that are cancelled stay COMPLETING.
	slow bool
	// lost records are not found.
	lost bool
	// wait holds Submit back until it is closed, and waiting counts such calls.
	wait    chan struct{}
	waiting int
	polls   int
}

type fakeJob struct {
	queue.State
	script string
	held   bool
	// ran is the number of times that the script ran. Each job counts, although the real
	// batch script of a second job of an object exits at once.
	ran int
	// cancels counts the calls of Cancel.
	cancels   int
	forgotten bool
}

func (s *fakeSlurm) Submit(ctx context.Context, uid, _ string, prepare func() (queue.Job, error)) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if wait := s.wait; wait != nil {
		s.waiting++
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	if err := errors.Join(s.unavailable, s.refusal); err != nil {
		return "", err
	}
	if earlier := s.recorded(uid); earlier != nil {
		return earlier.ID, nil
	}
	job, err := prepare()
	if err != nil {
		return "", err
	}
	made := &fakeJob{held: true, script: string(job.Script)}
	made.State = queue.State{UID: uid, ID: fmt.Sprint(100 + len(s.jobs)), State: "PENDING", Reason: "JobHeldUser", Submitted: time.Unix(1e9, 0), Partition: "debug"}
	s.jobs = append(s.jobs, made)
	return made.ID, nil
}

// recorded returns the job of an object, in any state, or nil if its record was
// removed. The caller holds s.mu.
func (s *fakeSlurm) recorded(uid string) *fakeJob {
	for _, job := range s.jobs {
		if job.UID == uid && !job.forgotten {
			return job
		}
	}
	return nil
}

// Forget removes the record of an object's job.
func (s *fakeSlurm) Forget(uid string) error {
	s.set(uid, func(job *fakeJob) { job.forgotten = true })
	return nil
}

func (s *fakeSlurm) Find(_ context.Context, uid string) (string, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unavailable != nil || s.lost {
		return "", false, s.unavailable
	}
	if job := s.recorded(uid); job != nil {
		return job.ID, true, nil
	}
	return "", false, nil
}

// Release starts a held job at once.
func (s *fakeSlurm) Release(_ context.Context, id string) error {
	return s.change(id, func(job *fakeJob) {
		if job.held && job.State.State == "PENDING" {
			job.held, job.State.State, job.Reason = false, "RUNNING", ""
			job.Start, job.Nodes, job.Output = time.Unix(1e9+10, 0), "n1", "/home/u/slurm-"+id+".out"
			job.ran++
			if s.quick {
				job.State.State, job.End = "COMPLETED", time.Unix(1e9+20, 0)
			}
		}
	})
}

func (s *fakeSlurm) Cancel(_ context.Context, id string) error {
	return s.change(id, func(job *fakeJob) {
		job.cancels++
		if job.State.State == "PENDING" || job.State.State == "RUNNING" {
			if s.slow && !job.held {
				job.State.State = "COMPLETING"
				return
			}
			job.State.State, job.End = "CANCELLED", time.Unix(1e9+20, 0)
		}
	})
}

func (s *fakeSlurm) change(id string, change func(*fakeJob)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unavailable != nil {
		return s.unavailable
	}
	for _, job := range s.jobs {
		if job.ID == id {
			change(job)
		}
	}
	return nil
}

func (s *fakeSlurm) States(_ context.Context, jobs map[string]string) (map[string]queue.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.polls++
	if s.unavailable != nil {
		return nil, s.unavailable
	}
	states := map[string]queue.State{}
	for _, job := range s.jobs {
		if jobs[job.UID] == job.ID {
			states[job.UID] = job.State
		}
	}
	return states, nil
}

// of returns the jobs of an object.
func (s *fakeSlurm) of(uid string) []fakeJob {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []fakeJob
	for _, job := range s.jobs {
		if job.UID == uid {
			all = append(all, *job)
		}
	}
	return all
}

// set changes the job of an object.
func (s *fakeSlurm) set(uid string, change func(*fakeJob)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, job := range s.jobs {
		if job.UID == uid {
			change(job)
		}
	}
}

// crash kills a controller at one of its calls, before or after the call has taken effect. Calls
// of Slurm and writes to the API server count. Later calls of the controller have no effect.
type crash struct {
	mu sync.Mutex
	// at is the number of the call, from 1. after is true if the call takes effect.
	at    int
	after bool
	calls int
	dead  bool
	kill  context.CancelFunc
}

var errKilled = errors.New("the controller was killed")

// call makes a call by calling do, unless the controller is dead or dies before it. It returns
// errKilled if the controller is dead afterwards.
func (k *crash) call(do func() error) error {
	k.mu.Lock()
	k.calls++
	now := k.calls == k.at
	if now {
		k.dead = true
	}
	dead := k.dead
	k.mu.Unlock()
	if now {
		defer k.kill()
	}
	if dead && (!now || !k.after) {
		return errKilled
	}
	err := do()
	if dead {
		return errKilled
	}
	return err
}

// crashingSlurm kills its controller at a call of Slurm.
type crashingSlurm struct {
	*fakeSlurm
	*crash
}

func (s crashingSlurm) Submit(ctx context.Context, uid, version string, prepare func() (queue.Job, error)) (id string, err error) {
	err = s.call(func() error { id, err = s.fakeSlurm.Submit(ctx, uid, version, prepare); return err })
	return id, err
}

func (s crashingSlurm) Find(ctx context.Context, uid string) (id string, found bool, err error) {
	err = s.call(func() error { id, found, err = s.fakeSlurm.Find(ctx, uid); return err })
	return id, found, err
}

func (s crashingSlurm) Release(ctx context.Context, id string) error {
	return s.call(func() error { return s.fakeSlurm.Release(ctx, id) })
}

func (s crashingSlurm) Cancel(ctx context.Context, id string) error {
	return s.call(func() error { return s.fakeSlurm.Cancel(ctx, id) })
}

func (s crashingSlurm) States(ctx context.Context, jobs map[string]string) (states map[string]queue.State, err error) {
	err = s.call(func() error { states, err = s.fakeSlurm.States(ctx, jobs); return err })
	return states, err
}

// crashingTransport kills its controller at a request to the API server. Only patches of objects
// count as calls.
type crashingTransport struct {
	http.RoundTripper
	*crash
}

func (c crashingTransport) RoundTrip(request *http.Request) (response *http.Response, err error) {
	do := func() error { response, err = c.RoundTripper.RoundTrip(request); return err }
	if request.Method != http.MethodPatch {
		err = do()
		return response, err
	}
	if err := c.call(do); err != nil {
		if response != nil {
			response.Body.Close()
		}
		return nil, err
	}
	return response, nil
}
