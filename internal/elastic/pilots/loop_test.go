package pilots

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"berth.dev/berth/internal/elastic/wishes"
	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/job/slurm"
)

// fakeSlurm accepts jobs and starts none by itself. It exists because unit tests have no Slurm.
type fakeSlurm struct {
	jobs      map[string]string
	states    map[string]queue.State
	cancelled []string
	// err is the error of the next submissions.
	err error
}

func (s *fakeSlurm) Submit(_ context.Context, uid, _ string, prepare func() (queue.Job, error)) (string, error) {
	if id := s.jobs[uid]; id != "" {
		return id, nil
	}
	if _, err := prepare(); err != nil {
		return "", err
	}
	if s.err != nil {
		return "", s.err
	}
	id := fmt.Sprint(100 + len(s.jobs))
	s.jobs[uid], s.states[uid] = id, queue.State{ID: id, State: slurm.Pending}
	return id, nil
}

func (s *fakeSlurm) Find(_ context.Context, uid string) (string, bool, error) {
	return s.jobs[uid], s.jobs[uid] != "", nil
}

func (s *fakeSlurm) Release(context.Context, string) error { return nil }

func (s *fakeSlurm) Cancel(_ context.Context, id string) error {
	s.cancelled = append(s.cancelled, id)
	for uid, state := range s.states {
		if state.ID == id {
			s.states[uid] = queue.State{ID: id, State: "CANCELLED"}
		}
	}
	return nil
}

func (s *fakeSlurm) States(context.Context, map[string]string) (map[string]queue.State, error) {
	return s.states, nil
}

// bed is a loop with a fake Slurm. Its view has the objects that a test puts there.
type bed struct {
	*Loop
	t     *testing.T
	slurm *fakeSlurm
}

// newBed returns the loop of job 7. Call it within synctest.Test.
func newBed(t *testing.T) *bed {
	slurm := &fakeSlurm{jobs: map[string]string{}, states: map[string]queue.State{}}
	client := fake.NewClientset().CoreV1()
	log := slog.New(slog.DiscardHandler)
	store := func() cache.Store { return cache.NewStore(cache.MetaNamespaceKeyFunc) }
	return &bed{t: t, slurm: slurm, Loop: &Loop{
		Options: Options{
			Job: "7", Seats: 64, Idle: time.Minute, Slurm: slurm, Node: testNode(), Log: log,
			Test:   func(context.Context, queue.Job) error { return nil },
			Forget: func(string) error { return nil },
			Ask:    func(context.Context, ...string) ([]byte, error) { return nil, nil },
		},
		core: client, events: newEvents(client, log), owners: &owners{byPod: map[types.UID][]wishes.Owner{}}, wake: make(chan struct{}, 1), known: make(chan struct{}, 1),
		view:   &view{podStore: store(), nodeStore: store(), claims: store(), disk: store()},
		pilots: map[string]*pilot{}, failures: map[string]*failure{}, held: map[types.UID]*failure{},
		tested: map[string]time.Time{}, fewer: map[string]limit{}, inMemory: map[string]time.Time{}, settled: true,
	}}
}

// run makes a pass each second, and calls Slurm as often.
func (b *bed) run(seconds int) {
	for range seconds {
		b.readStates(b.t.Context())
		_ = b.owners.read(b.t.Context(), b.view.pods(), func() {})
		b.pass(b.t.Context())
		var work errgroup.Group
		work.SetLimit(workers)
		b.startWork(b.t.Context(), &work)
		_ = work.Wait()
		time.Sleep(time.Second)
	}
}

// waitingPod adds a pod that the scheduler cannot place.
func (b *bed) waitingPod(name string, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"),
		}}}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}},
	}
	if change != nil {
		change(pod)
	}
	_ = b.view.podStore.Add(pod)
	return pod
}

// start lets Slurm start the job of the only pilot, and returns the pilot.
func (b *bed) start() *pilot {
	b.t.Helper()
	if len(b.pilots) != 1 {
		b.t.Fatalf("%d pilots, want 1", len(b.pilots))
	}
	var p *pilot
	for uid, one := range b.pilots {
		b.slurm.states[uid], p = queue.State{ID: one.Job, State: slurm.Running, Nodes: "n2"}, one
	}
	return p
}

// join adds a node of a pilot, which is ready.
func (b *bed) join(p *pilot, change func(*corev1.Node)) *corev1.Node {
	name := "n2-" + p.Job
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{jobLabel: p.Job, corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("250"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	if change != nil {
		change(node)
	}
	_ = b.view.nodeStore.Add(node)
	return node
}

// problem returns why no job is submitted for a pod, as its Event has it.
func (b *bed) problem(pod *corev1.Pod) string {
	if told := b.events.all[topic{pod.UID, false}]; told != nil && told.reason == "NoNodeRequested" {
		return told.text
	}
	return ""
}

// TestUnplacedPodBringsFewPilots checks that a pod that the scheduler does not place on an empty
// node brings pilots ever more rarely, and that other pods still do.
func TestUnplacedPodBringsFewPilots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		pod := b.waitingPod("p", nil)
		for range 3 * 3600 {
			b.run(1)
			for uid, p := range b.pilots {
				switch state := b.slurm.states[uid]; {
				case state.State == slurm.Pending:
					b.slurm.states[uid] = queue.State{ID: p.Job, State: slurm.Running, Nodes: "n2"}
					b.join(p, nil)
				case queue.Ended(state.State):
					b.view.nodeStore = cache.NewStore(cache.MetaNamespaceKeyFunc)
				}
			}
		}
		if jobs := len(b.slurm.jobs); jobs < 8 || jobs > 12 || len(b.slurm.cancelled) < jobs-1 {
			t.Errorf("%d jobs in three hours, %d cancelled, want about ten of each", jobs, len(b.slurm.cancelled))
		}
		want := "brought a node for the pod, but the scheduler did not place it there"
		if got := b.problem(pod); !strings.Contains(got, want) {
			t.Errorf("the event is %q, want one with %q", got, want)
		}
		b.pilots, b.held[pod.UID] = map[string]*pilot{}, &failure{until: time.Now().Add(time.Minute)}
		b.view.nodeStore = cache.NewStore(cache.MetaNamespaceKeyFunc)
		before := len(b.slurm.jobs)
		b.waitingPod("q", nil)
		if b.run(3); len(b.slurm.jobs) != before+1 {
			t.Errorf("another pod brings %d jobs, want 1", len(b.slurm.jobs)-before)
		}
	})
}

// TestNodeThatIsNeverReady checks that a job whose node does not become ready is cancelled: at
// joinLimit if a pod waits for it, and like an idle node if none does.
func TestNodeThatIsNeverReady(t *testing.T) {
	for _, test := range []struct {
		name   string
		needed bool
		leaves time.Duration
	}{
		{"a pod waits", true, joinLimit},
		{"no pod waits", false, time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				pod := b.waitingPod("p", nil)
				b.run(3)
				p := b.start()
				b.join(p, func(node *corev1.Node) { node.Status.Conditions[0].Status = corev1.ConditionFalse })
				if !test.needed {
					_ = b.view.podStore.Delete(pod)
				}
				seconds := int(test.leaves.Seconds())
				if b.run(seconds - 5); len(b.slurm.cancelled) != 0 {
					t.Errorf("the job is cancelled before %s", test.leaves)
				}
				if b.run(10); len(b.slurm.cancelled) != 1 {
					t.Errorf("the job is not cancelled after %s", test.leaves)
				}
				want := "1 of 1 nodes of job 100 were not ready 3m0s after its start"
				if got := b.problem(pod); test.needed && !strings.HasPrefix(got, want) {
					t.Errorf("the event is %q, want %q", got, want)
				}
			})
		})
	}
}

// TestNewPodsDelayPilotsBriefly checks that pods that the scheduler has not looked at delay other
// pods' pilots at most for judgeLimit, even if such pods appear all the time.
func TestNewPodsDelayPilotsBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.waitingPod("p", nil)
		for i := range 5 {
			unseen := b.waitingPod(fmt.Sprint("new", i), func(pod *corev1.Pod) { pod.Status.Conditions = nil })
			b.run(1)
			if err := b.view.podStore.Delete(unseen); err != nil {
				t.Fatal(err)
			}
			if submitted, want := len(b.slurm.jobs) > 0, i >= 3; submitted != want {
				t.Errorf("submitted after %d s: %t, want %t", i, submitted, want)
			}
		}
	})
}

// TestErrorsBeforeSubmission checks that only an answer of Slurm, or none, pauses other
// submissions, and that Events name the part that has failed.
func TestErrorsBeforeSubmission(t *testing.T) {
	for _, test := range []struct {
		name   string
		slurm  error
		paused bool
		want   string
	}{
		{"Slurm's queue is full", &queue.Refused{Message: "too many jobs", Full: true}, true, "Slurm takes no job for a new node now: too many jobs; berth tries again"},
		{"Slurm is unavailable", &queue.Unavailable{Err: errors.New("timeout")}, true, "Slurm takes no job for a new node now: Slurm is unavailable: timeout; berth tries again"},
		{"the folder of jobs", errors.New("disk quota exceeded"), false, "no job is submitted for a new node yet: disk quota exceeded; berth tries again"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.slurm.err = test.slurm
				pod := b.waitingPod("p", nil)
				b.run(2)
				if paused := time.Now().Before(b.nextSubmit); paused != test.paused {
					t.Errorf("submissions pause: %t, want %t", paused, test.paused)
				}
				if told := b.events.all[topic{pod.UID, false}]; told == nil || told.text != test.want {
					t.Errorf("the event is %+v, want %q", told, test.want)
				}
				b.slurm.err = nil
				if b.run(10); len(b.slurm.jobs) != 1 {
					t.Errorf("%d jobs, want 1", len(b.slurm.jobs))
				}
			})
		})
	}
}

// A pilot without a record may be for a pod that waits.
func TestNoPilotBeforeEarlierOnesAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.settled = false
		b.waitingPod("a", nil)
		b.run(5)
		if len(b.pilots) > 0 {
			t.Fatalf("%d pilots", len(b.pilots))
		}
		b.settled = true
		b.run(5)
		if len(b.pilots) != 1 {
			t.Errorf("%d pilots, want 1", len(b.pilots))
		}
	})
}
