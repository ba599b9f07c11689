package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/results"
)

// jobWithResults is a SlurmJob without its name.
const jobWithResults = `{apiVersion: wlm.sylabs.io/v1alpha1, kind: SlurmJob, metadata: {name: %s}, spec: {batch: "#!/bin/sh\n", results: {from: a, mount: {name: data, emptyDir: {}}}}}`

// jobWithUpload is a BridgeJob without its name.
const jobWithUpload = `{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, metadata: {name: %s}, spec: {
	jobdata: {jobscript: "#!/bin/sh\n", scriptlocation: inline}, s3storage: {s3secret: a, endpoint: b}, s3upload: {bucket: c}}}`

// errPanic makes collections.collect panic.
var errPanic = errors.New("nil")

// collections answers calls of Collect with errors, in order, and then with success.
type collections struct {
	mu     sync.Mutex
	errs   []error
	calls  int
	names  []string      // of the objects of calls
	blocks chan struct{} // Collect waits until it is closed, unless it is nil
	ended  int           // calls that waited until their context ended
}

func (c *collections) collect(ctx context.Context, object *unstructured.Unstructured) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	c.names = append(c.names, object.GetName())
	if blocks := c.blocks; blocks != nil {
		c.mu.Unlock()
		select {
		case <-blocks:
		case <-ctx.Done():
			c.mu.Lock()
			c.ended++
			return "", ctx.Err()
		}
		c.mu.Lock()
	}
	if len(c.errs) > 0 {
		err := c.errs[0]
		c.errs = c.errs[1:]
		if errors.Is(err, errPanic) {
			panic(err)
		}
		return "", err
	}
	if from, _, _ := unstructured.NestedString(object.Object, "spec", "results", "from"); from != "a" {
		return "", fmt.Errorf("got %q", from)
	}
	return "a is in volume data", nil
}

func (c *collections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// collecting runs a controller that collects results.
func (p *fixture) collecting(c *collections) (stop func()) {
	options := p.options(p.server.Config(p, "admin", "system:masters"))
	options.Collect = c.collect
	return p.run(options)
}

// complete ends the job of an object now.
func (p *fixture) complete(object *unstructured.Unstructured) {
	p.awaitStatus(object, func(s kinds.Status) bool { return s.State == "RUNNING" })
	p.slurm.set(string(object.GetUID()), func(job *fakeJob) {
		job.State.State, job.End = "COMPLETED", time.Now()
	})
}

// testCollect collects the results of a failed job. An attempt that fails is repeated, also by
// another controller, and meanwhile the object has not succeeded or failed.
func testCollect(p *fixture) {
	c := &collections{errs: []error{errors.New("volume data is away")}, blocks: make(chan struct{})}
	stop := p.collecting(c)
	object := p.create(fmt.Sprintf(jobWithResults, "collected"))
	p.awaitStatus(object, state("RUNNING"))
	// The job ended long ago: the controller was away for longer than its patience.
	p.slurm.set(string(object.GetUID()), func(job *fakeJob) {
		job.State.State, job.End = "FAILED", time.Now().Add(-2*patience)
	})
	p.awaitStatus(object, func(s kinds.Status) bool {
		return s.State == "FAILED" && s.Status == "Running" && s.Results == kinds.Collecting && c.count() == 1
	})
	stop()
	if status := p.awaitStatus(object, func(kinds.Status) bool { return true }); status.Results != kinds.Collecting {
		p.Errorf("got %+v", status)
	}
	c.mu.Lock()
	c.errs = []error{errors.New("volume data is away")}
	close(c.blocks)
	c.blocks = nil
	c.mu.Unlock()
	if jobs := p.slurm.of(string(object.GetUID())); len(jobs) != 1 || jobs[0].forgotten {
		p.Errorf("got %+v: the records are needed to collect the results", jobs)
	}
	p.collecting(c)
	status := p.awaitStatus(object, func(s kinds.Status) bool { return s.Results == kinds.Collected })
	if status.Status != "Failed" || !strings.HasSuffix(status.Message, "; a is in volume data") || !strings.HasPrefix(status.Message, "job ") || c.count() != 3 {
		p.Errorf("got %+v after %d calls", status, c.count())
	}
}

// testUpload: a BridgeJob has not ended for others until its files are uploaded, and its records are
// kept so long.
func testUpload(p *fixture) {
	c := &collections{blocks: make(chan struct{}), errs: []error{fmt.Errorf("upload: %w", finalError())}}
	p.collecting(c)
	object := p.create(fmt.Sprintf(jobWithUpload, "up"))
	p.complete(object)
	p.awaitStatus(object, func(s kinds.Status) bool {
		return s.State == "COMPLETED" && s.JobStatus == "RUNNING" && s.Results == kinds.Collecting && c.count() == 1
	})
	if jobs := p.slurm.of(string(object.GetUID())); len(jobs) != 1 || jobs[0].forgotten {
		p.Errorf("got %+v", jobs)
	}
	close(c.blocks)
	status := p.awaitStatus(object, func(s kinds.Status) bool { return s.Results == kinds.NotCollected })
	if status.JobStatus != "FAILED" || status.State != "COMPLETED" || !strings.Contains(status.Message, "; the results were not collected: upload: ") {
		p.Errorf("got %+v", status)
	}
	await(p, "the records are removed", func() error {
		if jobs := p.slurm.of(string(object.GetUID())); !jobs[0].forgotten {
			return errors.New("they are there")
		}
		return nil
	})
}

// testStoreAway: an object whose script is in a store that is away waits, and gets one job later.
func testStoreAway(p *fixture) {
	options := p.options(p.server.Config(p, "admin", "system:masters"))
	prepare := options.Prepare
	var away atomic.Bool
	away.Store(true)
	options.Prepare = func(ctx context.Context, object *unstructured.Unstructured, request kinds.Request) (queue.Job, error) {
		if away.Load() {
			return queue.Job{}, &Temporary{errors.New("the S3 store is away")}
		}
		return prepare(ctx, object, request)
	}
	stop := p.run(options)
	object := p.createJob("waits")
	if status := p.awaitStatus(object, func(s kinds.Status) bool { return s.Message != "" }); status.State != kinds.Waiting || status.Message != "the S3 store is away" {
		p.Errorf("got %+v", status)
	}
	stop()
	p.run(options)
	away.Store(false)
	p.awaitStatus(object, state("RUNNING"))
	if jobs := p.slurm.of(string(object.GetUID())); len(jobs) != 1 || jobs[0].ran != 1 {
		p.Errorf("got %+v", jobs)
	}
}

// testNotCollected: an error that another attempt does not correct ends the object, and neither it
// nor an attempt that lasts keeps a deleted object.
func testNotCollected(p *fixture) {
	c := &collections{errs: []error{fmt.Errorf("collect: %w", finalError())}}
	p.collecting(c)
	object := p.create(fmt.Sprintf(jobWithResults, "outside"))
	p.complete(object)
	status := p.awaitStatus(object, func(s kinds.Status) bool { return s.Results == kinds.NotCollected })
	if status.State != "COMPLETED" || status.Status != "Failed" || !strings.Contains(status.Message, "; the results were not collected: collect: ") {
		p.Errorf("got %+v", status)
	}
	p.delete(object)
	p.awaitGone(object)
	c.mu.Lock()
	c.errs = []error{errPanic}
	c.mu.Unlock()
	panics := p.create(fmt.Sprintf(jobWithResults, "panics"))
	p.complete(panics)
	status = p.awaitStatus(panics, func(s kinds.Status) bool { return s.Results == kinds.NotCollected })
	if !strings.Contains(status.Message, "an error in berth (nil): report it") {
		p.Errorf("got %+v", status)
	}
	c.mu.Lock()
	c.blocks = make(chan struct{})
	c.mu.Unlock()
	defer close(c.blocks)
	lasting := p.create(fmt.Sprintf(jobWithResults, "lasting"))
	p.complete(lasting)
	await(p, "collect", func() error {
		if c.count() != 3 {
			return fmt.Errorf("%d calls", c.count())
		}
		return nil
	})
	p.delete(lasting)
	p.awaitGone(lasting)
	p.awaitEnded(c, 1)
}

// awaitEnded waits until contexts of calls of Collect have ended.
func (p *fixture) awaitEnded(c *collections, want int) {
	p.Helper()
	await(p, "the end of an attempt", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ended != want {
			return fmt.Errorf("%d have ended", c.ended)
		}
		return nil
	})
}

// testTurns: an upload in several turns ends, and uploads that last delay no results for volumes. An
// attempt ends when its object is edited.
func testTurns(p *fixture) {
	c := &collections{errs: []error{&Unfinished{errors.New("1 of 2 files")}, &Unfinished{errors.New("2 of 3 files")}, finalError()}}
	p.collecting(c)
	create := func(name string) *unstructured.Unstructured {
		object := p.create(fmt.Sprintf(jobWithUpload, name))
		p.complete(object)
		return object
	}
	p.awaitStatus(create("turns"), func(s kinds.Status) bool { return s.Results == kinds.NotCollected })
	p.awaitEvent("CollectingResults")
	if c.count() != 3 {
		p.Errorf("%d calls", c.count())
	}
	c.mu.Lock()
	c.blocks = make(chan struct{})
	c.mu.Unlock()
	defer close(c.blocks)
	first := create("slow")
	create("slower")
	await(p, "uploads", func() error {
		if c.count() != 3+copiers {
			return fmt.Errorf("%d calls", c.count())
		}
		return nil
	})
	p.complete(p.create(fmt.Sprintf(jobWithResults, "beside")))
	await(p, "a collection beside them", func() error {
		if c.count() != 4+copiers {
			return fmt.Errorf("%d calls", c.count())
		}
		return nil
	})
	if _, err := p.objects(kinds.BridgeJob).Patch(p.Context(), first.GetName(), types.MergePatchType, []byte(`{"spec": {"s3upload": {"bucket": "other"}}}`), metav1.PatchOptions{}); err != nil {
		p.Fatal(err)
	}
	p.awaitEnded(c, 1)
}

// testOrder: after a turn, an object that waits comes before the next turn.
func testOrder(p *fixture) {
	c := &collections{blocks: make(chan struct{}), errs: []error{&Unfinished{errors.New("1 of 2 files")}}}
	options := p.options(p.server.Config(p, "admin", "system:masters"))
	options.Collect = c.collect
	controller, err := New(options)
	if err != nil {
		p.Fatal(err)
	}
	p.start(controller)
	all := []*unstructured.Unstructured{}
	create := func(name string) {
		object := p.create(fmt.Sprintf(jobWithUpload, name))
		p.complete(object)
		all = append(all, object)
	}
	for i := range copiers {
		create(fmt.Sprintf("begun-%d", i))
	}
	await(p, "uploads", func() error {
		if c.count() != copiers {
			return fmt.Errorf("%d calls", c.count())
		}
		return nil
	})
	create("waits")
	await(p, "an object that waits", func() error {
		if controller.uploads.queue.Len() != 1 {
			return errors.New("none")
		}
		return nil
	})
	c.mu.Lock()
	for range all {
		c.errs = append(c.errs, finalError())
	}
	c.mu.Unlock()
	c.blocks <- struct{}{} // ends one turn; the other copiers stay busy
	await(p, "the next upload", func() error {
		if c.count() != copiers+1 {
			return fmt.Errorf("%d calls", c.count())
		}
		return nil
	})
	close(c.blocks)
	for _, object := range all {
		p.awaitStatus(object, func(s kinds.Status) bool { return s.Results == kinds.NotCollected })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.names) != copiers+2 || c.names[copiers] != "waits" {
		p.Errorf("got %q", c.names)
	}
}

// testCollector checks the errors of a collector whose pod does not start: no kubelet runs here.
func testCollector(p *fixture) {
	account := parse(p, `{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}`)
	accounts := p.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}).Namespace(p.namespace)
	if _, err := accounts.Create(p.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		p.Fatal(err)
	}
	pods := p.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(p.namespace)
	object := p.createJob("cow")
	object.SetAPIVersion("wlm.sylabs.io/v1alpha1")
	object.SetKind("SlurmJob")
	root := p.TempDir()
	source := results.Source{Path: root, Roots: []string{root}, Limits: results.DefaultLimits()}
	collector := results.Default(p.server.Config(p, "admin", "system:masters"), "busybox")
	collector.StartTimeout, collector.Poll = 50*time.Millisecond, 5*time.Millisecond
	fails := func(volume, want string) error {
		p.Helper()
		_, err := collector.Collect(p.Context(), object, parse(p, volume).Object, source)
		if err == nil || !strings.Contains(err.Error(), want) {
			p.Errorf("%s: got %v, want %q", volume, err, want)
		}
		return err
	}
	final := new(results.Final)
	if err := fails("{name: Data, persistentVolumeClaim: {claimName: data}}", "spec.volumes[0].name: Invalid value"); !errors.As(err, &final) {
		p.Errorf("%v is not final", err)
	}
	const claim = "{name: data, persistentVolumeClaim: {claimName: data}}"
	fails(claim, "pod cow-job-collect, which mounts the volume, does not start: ")
	if all, err := pods.List(p.Context(), metav1.ListOptions{}); err != nil || len(all.Items) > 0 {
		p.Errorf("got %v, %v: the pod was not deleted", all, err)
	}
	// The pod of an earlier attempt is deleted, and somebody else's pod is not.
	old := parse(p, `{apiVersion: v1, kind: Pod, metadata: {name: cow-job-collect}, spec: {containers: [{name: a, image: b}]}}`)
	old.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Name: "cow", UID: object.GetUID(), Controller: ptr.To(true)}})
	if _, err := pods.Create(p.Context(), old, metav1.CreateOptions{}); err != nil {
		p.Fatal(err)
	}
	fails(claim, "pod cow-job-collect of an earlier attempt is being deleted")
	fails(claim, "does not start")
	old.SetOwnerReferences(nil)
	if _, err := pods.Create(p.Context(), old, metav1.CreateOptions{}); err != nil {
		p.Fatal(err)
	}
	fails(claim, "does not belong to this object")
	if _, err := pods.Get(p.Context(), "cow-job-collect", metav1.GetOptions{}); err != nil {
		p.Error(err)
	}
}

func TestTryAgain(t *testing.T) {
	missing := fmt.Errorf("collect: %w", os.ErrNotExist)
	for _, test := range []struct {
		err  error
		ago  time.Duration
		want bool
	}{
		{errors.New("away"), time.Hour, true}, {errors.New("away"), 2 * patience, false},
		{missing, 0, true}, {missing, time.Hour, false}, {finalError(), 0, false}, {&Unfinished{errors.New("turn")}, 2 * patience, true},
	} {
		if got := tryAgain(test.err, time.Now().Add(-test.ago)); got != test.want {
			t.Errorf("%v after %s: %t", test.err, test.ago, got)
		}
	}
}

// finalError returns the error for results outside of the roots.
func finalError() error {
	_, err := results.Source{Path: "/"}.Write(context.Background(), nil)
	return err
}
