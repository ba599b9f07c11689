package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/workqueue"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/kube/control/controltest"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// TestController runs all its parts with one API server. Each part has its own namespace.
func TestController(t *testing.T) {
	server := controltest.Start(t)
	admin, err := dynamic.NewForConfig(server.Config(t, "admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "define the kinds", func() error { return Install(t.Context(), admin) })
	if err := Install(t.Context(), admin); err != nil { // once more
		t.Fatal(err)
	}
	for name, test := range map[string]func(*fixture){
		"lifecycle": testLifecycle, "kill": testKill, "delete": testDelete, "rejected": testRejected, "refused": testRefused,
		"unavailable": testUnavailable, "edit": testEdit, "crashes": testCrashes, "leaders": testLeaders, "large": testLargeScript,
		"schema": testSchema, "collect": testCollect, "inputs": testInputs, "noinputs": testNoInputs, "notcollected": testNotCollected, "upload": testUpload, "storeaway": testStoreAway, "collector": testCollector, "trust": testTrust, "forged": testForgedNumber,
		"lost": testLost, "busy": testBusy, "temporary": testTemporary, "gone": testFileGone, "lease": testAnotherLease, "unchanged": testUnchanged, "vanished": testVanished, "stored": testVanishedBeforeStored, "away": testServerAway, "wlmjob": testWlmJob, "shown": testShown, "nodes": testNodeRights, "turns": testTurns, "order": testOrder, "inputsend": testInputsEnd,
	} {
		t.Run(name, func(t *testing.T) {
			p := &fixture{T: t, server: server, client: admin, namespace: name, slurm: &fakeSlurm{}}
			p.makeNamespace()
			test(p)
		})
	}
}

// testLifecycle follows an example of each operator to the end of its job.
func testLifecycle(p *fixture) {
	p.serve()
	bridge := p.create(neighbour(p, "Bridge-Operator/samples/core/operator/job0slurm.yaml"))
	wlm := p.create(neighbour(p, "wlm-operator/examples/batch-example.yaml"))
	running := p.awaitStatus(bridge, state("RUNNING"))
	if running.JobStatus != "RUNNING" || running.Nodes != "n1" || running.Partition != "debug" || running.StartTime == "" || running.JobID == "" {
		p.Errorf("got %+v", running)
	}
	p.awaitStatus(wlm, func(s kinds.Status) bool { return s.State == "RUNNING" && s.Status == "Running" })
	// Slurm requeues one job and ends the other.
	p.slurm.set(string(wlm.GetUID()), func(job *fakeJob) {
		job.State.State, job.Reason, job.Restarts, job.ExpectedStart = "PENDING", "BeginTime", 1, time.Unix(1e9+60, 0)
	})
	p.slurm.set(string(bridge.GetUID()), func(job *fakeJob) {
		job.State.State, job.ExitCode, job.End = "TIMEOUT", 0, time.Unix(1e9+70, 0)
	})
	failed := p.awaitStatus(bridge, state("TIMEOUT"))
	if failed.JobStatus != "FAILED" || failed.Elapsed != "1m0s" || failed.CompletionTime != "2001-09-09T01:47:50Z" || failed.ExitCode == nil ||
		failed.Message != "job "+failed.JobID+": TIMEOUT; its output is in /home/u/slurm-"+failed.JobID+".out" {
		p.Errorf("got %+v", failed)
	}
	pending := p.awaitStatus(wlm, state("PENDING"))
	if pending.Restarts != 1 || pending.Reason != "BeginTime" || pending.ExpectedStart != "2001-09-09T01:47:40Z" || pending.Status != "Pending" || pending.Started != "" {
		p.Errorf("got %+v", pending)
	}
	p.slurm.set(string(wlm.GetUID()), func(job *fakeJob) { job.State.State, job.ExitCode, job.End = "COMPLETED", 0, time.Unix(1e9+90, 0) })
	if done := p.awaitStatus(wlm, state("COMPLETED")); done.Status != "Succeeded" || done.ExpectedStart != "" || *done.ExitCode != 0 {
		p.Errorf("got %+v", done)
	}
	await(p, "events", func() error {
		events, err := p.client.Resource(eventsResource).Namespace(p.namespace).List(p.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		missing := map[string]bool{"Submitted": true, "NoEffect": true, "Started": true, "Requeued": true, "Completed": true, "Failed": true}
		for _, event := range events.Items {
			delete(missing, event.Object["reason"].(string))
		}
		if len(missing) > 0 {
			return fmt.Errorf("missing: %v", missing)
		}
		return nil
	})
}

func testKill(p *fixture) {
	p.serve()
	object := p.create(neighbour(p, "Bridge-Operator/samples/core/operator/job0slurm.yaml"))
	p.awaitStatus(object, state("RUNNING"))
	if _, err := p.objects(kinds.BridgeJob).Patch(p.Context(), object.GetName(), "application/merge-patch+json", []byte(`{"spec": {"kill": true}}`), metav1.PatchOptions{}); err != nil {
		p.Fatal(err)
	}
	if status := p.awaitStatus(object, state("CANCELLED")); status.JobStatus != "KILLED" {
		p.Errorf("got %+v", status)
	}
	// A job that takes its time to end is cancelled once.
	p.slurm.mu.Lock()
	p.slurm.slow = true
	p.slurm.mu.Unlock()
	slow := p.create(`{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, metadata: {name: slow}, spec: {jobdata: {jobscript: "#!/bin/sh\n", scriptlocation: inline}}}`)
	p.awaitStatus(slow, state("RUNNING"))
	p.patch(slow, `{"spec": {"kill": true}}`)
	p.awaitStatus(slow, state("COMPLETING"))
	p.awaitPolls(10)
	if jobs := p.slurm.of(string(slow.GetUID())); len(jobs) != 1 || jobs[0].cancels != 1 {
		p.Errorf("got %+v", jobs)
	}
	p.slurm.set(string(slow.GetUID()), func(job *fakeJob) { job.State.State = "CANCELLED" })
	p.awaitStatus(slow, state("CANCELLED"))
	// An object that is created with kill: true gets no job.
	dead := p.create(`{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, metadata: {name: dead}, spec: {kill: true, jobdata: {jobscript: "#!/bin/sh\n", scriptlocation: inline}}}`)
	if status := p.awaitStatus(dead, state("CANCELLED")); status.JobStatus != "KILLED" || len(p.slurm.of(string(dead.GetUID()))) != 0 {
		p.Errorf("got %+v", status)
	}
}

// testDelete deletes an object whose job runs, and one whose job has ended.
func testDelete(p *fixture) {
	stop := p.serve()
	running, ended := p.createJob("running"), p.createJob("ended")
	p.awaitStatus(running, state("RUNNING"))
	p.slurm.set(string(ended.GetUID()), func(job *fakeJob) { job.State.State, job.End = "COMPLETED", time.Unix(1e9+20, 0) })
	p.awaitStatus(ended, state("COMPLETED"))
	for _, object := range []*unstructured.Unstructured{running, ended} {
		if err := p.objects(kinds.SlurmJob).Delete(p.Context(), object.GetName(), metav1.DeleteOptions{}); err != nil {
			p.Fatal(err)
		}
	}
	await(p, "deletion", func() error {
		left, err := p.objects(kinds.SlurmJob).List(p.Context(), metav1.ListOptions{})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d are left", len(left.Items))
		}
		return err
	})
	if jobs := p.slurm.of(string(running.GetUID())); len(jobs) != 1 || jobs[0].State.State != "CANCELLED" {
		p.Errorf("got %+v", jobs)
	}
	// Without a controller, the finalizer keeps a deleted object.
	kept := p.createJob("kept")
	p.awaitStatus(kept, state("RUNNING"))
	stop()
	if err := p.objects(kinds.SlurmJob).Delete(p.Context(), "kept", metav1.DeleteOptions{}); err != nil {
		p.Fatal(err)
	}
	if _, err := p.objects(kinds.SlurmJob).Get(p.Context(), "kept", metav1.GetOptions{}); err != nil {
		p.Error(err)
	}
}

// testLost: with another folder of state, nothing pretends to have released or cancelled a
// job, and a deleted object stays.
func testLost(p *fixture) {
	p.serve()
	setLost := func(lost bool) {
		p.slurm.mu.Lock()
		defer p.slurm.mu.Unlock()
		p.slurm.lost = lost
	}
	killed := p.create(`{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, metadata: {name: killed}, spec: {jobdata: {jobscript: "#!/bin/sh\n", scriptlocation: inline}}}`)
	deleted := p.createJob("deleted")
	p.awaitStatus(killed, state("RUNNING"))
	p.awaitStatus(deleted, state("RUNNING"))
	setLost(true)
	held := p.createJob("held")
	status := p.awaitStatus(held, func(status kinds.Status) bool { return strings.Contains(status.Message, "--state-dir") })
	if status.Released || status.JobID == "" {
		p.Errorf("held: %+v", status)
	}
	p.patch(killed, `{"spec": {"kill": true}}`)
	p.delete(deleted)
	for _, object := range []*unstructured.Unstructured{killed, deleted} {
		status := p.awaitStatus(object, func(status kinds.Status) bool { return strings.Contains(status.Message, "--state-dir") })
		if status.State != "RUNNING" {
			p.Errorf("%s: %+v", object.GetName(), status)
		}
	}
	// An object whose job is known to have ended goes.
	over := p.createJob("over")
	stored := p.awaitStatus(over, func(status kinds.Status) bool { return strings.Contains(status.Message, "--state-dir") })
	p.delete(over)
	p.awaitStatus(over, func(status kinds.Status) bool {
		return strings.HasPrefix(status.Message, "cancel the job: job "+stored.JobID)
	})
	p.slurm.set(string(over.GetUID()), func(job *fakeJob) { job.State.State = queue.Unknown })
	p.awaitGone(over)
	setLost(false)
	p.awaitStatus(held, func(status kinds.Status) bool { return status.State == "RUNNING" && status.Message == "" })
	p.awaitStatus(killed, state("CANCELLED"))
	p.awaitGone(deleted)
	if jobs := p.slurm.of(string(deleted.GetUID())); jobs[0].State.State != "CANCELLED" {
		p.Errorf("got %+v", jobs)
	}
}

// testTemporary: an error of a file system that passes does not reject an object.
func testTemporary(p *fixture) {
	options := p.options(p.server.Config(p, "admin", "system:masters"))
	prepare := options.Prepare
	var fails atomic.Bool
	fails.Store(true)
	options.Prepare = func(ctx context.Context, object *unstructured.Unstructured, request kinds.Request) (queue.Job, error) {
		if fails.Load() {
			return queue.Job{}, &os.PathError{Op: "open", Path: "/home/u/run.sh", Err: syscall.ESTALE}
		}
		return prepare(ctx, object, request)
	}
	p.run(options)
	object := p.createJob("a")
	if status := p.awaitStatus(object, func(status kinds.Status) bool { return status.Message != "" }); status.State != kinds.Waiting {
		p.Errorf("got %+v", status)
	}
	fails.Store(false)
	p.awaitStatus(object, state("RUNNING"))
	if temporary(&os.PathError{Err: syscall.ENOENT}) || temporary(errors.New("it is no regular file")) {
		p.Error("the error of a wrong path is temporary")
	}
}

// testFileGone: a controller ended between sbatch and the stored number, and the file of the
// script is gone when the next one starts. The object gets the held job.
func testFileGone(p *fixture) {
	object := p.createJob("a")
	id, err := p.slurm.Submit(p.Context(), string(object.GetUID()), "1", emptyJob)
	if err != nil {
		p.Fatal(err)
	}
	options := p.options(p.server.Config(p, "admin", "system:masters"))
	options.Prepare = func(context.Context, *unstructured.Unstructured, kinds.Request) (queue.Job, error) {
		return queue.Job{}, os.ErrNotExist
	}
	p.run(options)
	p.awaitStatus(object, func(s kinds.Status) bool { return s.State == "RUNNING" && s.JobID == id })
}

// testAnotherLease: states of an earlier lease are forgotten.
func testAnotherLease(p *fixture) {
	c, err := New(p.options(p.server.Config(p, "admin", "system:masters")))
	if err != nil {
		p.Fatal(err)
	}
	ended, cancel := context.WithCancel(p.Context())
	cancel()
	c.states, c.slurmError = map[string]queue.State{"a": {}}, "away"
	c.serve(ended)
	if c.states != nil || c.slurmError != "" {
		p.Errorf("got %v, %q", c.states, c.slurmError)
	}
}

// testUnchanged: a poll queues only objects whose jobs have changed, and all when Slurm begins or
// ceases to answer.
func testUnchanged(p *fixture) {
	c, err := New(p.options(p.server.Config(p, "admin", "system:masters")))
	if err != nil {
		p.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": p.namespace, "name": "job", "uid": "u"},
		"status":   map[string]any{"jobID": "7", "state": "PENDING", "released": true},
	}}
	for kind, informer := range c.informer {
		if kind.Name == "SlurmJob" {
			if err := informer.GetStore().Add(object); err != nil {
				p.Fatal(err)
			}
		}
	}
	job := &fakeJob{State: queue.State{UID: "u", ID: "7", State: "PENDING", Reason: "Priority"}}
	p.slurm.mu.Lock()
	p.slurm.jobs = append(p.slurm.jobs, job)
	p.slurm.mu.Unlock()
	unavailable := func(err error) {
		p.slurm.mu.Lock()
		p.slurm.unavailable = err
		p.slurm.mu.Unlock()
	}
	for _, step := range []struct {
		what   string
		change func()
		queued int
	}{
		{"the first poll", func() {}, 1},
		{"nothing changed", func() {}, 0},
		{"another reason", func() { p.slurm.set("u", func(job *fakeJob) { job.State.Reason = "Resources" }) }, 1},
		{"Slurm is away", func() { unavailable(errors.New("away")) }, 1},
		{"Slurm is still away", func() {}, 0},
		{"Slurm is back", func() { unavailable(nil) }, 1},
		{"not released yet", func() { _ = unstructured.SetNestedField(object.Object, false, "status", "released") }, 0},
		{"released during that poll", func() { _ = unstructured.SetNestedField(object.Object, true, "status", "released") }, 1},
		{"a message to be replaced", func() { _ = unstructured.SetNestedField(object.Object, "old", "status", "message") }, 1},
	} {
		step.change()
		c.queue = c.newQueue()
		c.poll(p.Context())
		if n := c.queue.Len(); n != step.queued {
			p.Errorf("%s: %d objects are queued, not %d", step.what, n, step.queued)
		}
		c.queue.ShutDown()
	}
}

// testBusy: while submissions wait, objects with jobs are served.
func testBusy(p *fixture) {
	p.serve()
	first, second := p.createJob("first"), p.createJob("second")
	p.awaitStatus(first, state("RUNNING"))
	p.awaitStatus(second, state("RUNNING"))
	wait := make(chan struct{})
	p.slurm.mu.Lock()
	p.slurm.wait = wait
	p.slurm.mu.Unlock()
	var waiting []*unstructured.Unstructured
	for i := range 3 * workers {
		waiting = append(waiting, p.createJob(fmt.Sprint("waiting-", i)))
	}
	await(p, "submissions wait", func() error {
		p.slurm.mu.Lock()
		defer p.slurm.mu.Unlock()
		if p.slurm.waiting < workers {
			return fmt.Errorf("%d do", p.slurm.waiting)
		}
		return nil
	})
	p.slurm.set(string(first.GetUID()), func(job *fakeJob) { job.State.State = "COMPLETED" })
	p.awaitStatus(first, state("COMPLETED"))
	p.delete(second)
	p.awaitGone(second)
	// Whatever was deleted meanwhile gets no job, or a cancelled one.
	for _, object := range waiting {
		p.delete(object)
	}
	p.slurm.mu.Lock()
	p.slurm.wait = nil
	p.slurm.mu.Unlock()
	close(wait)
	for _, object := range waiting {
		p.awaitGone(object)
		for _, job := range p.slurm.of(string(object.GetUID())) {
			if job.ran != 0 || job.State.State != "CANCELLED" {
				p.Errorf("%s: got %+v", object.GetName(), job)
			}
		}
	}
}

// testVanished: somebody removes finalizers. While the object is there, it gets the
// finalizer again; if it is gone, its job is cancelled.
func testVanished(p *fixture) {
	p.serve()
	unlocked := p.createJob("unlocked")
	p.awaitStatus(unlocked, state("RUNNING"))
	p.patch(unlocked, `{"metadata": {"finalizers": null}}`)
	await(p, "the finalizer", func() error {
		now, err := p.objects(kinds.SlurmJob).Get(p.Context(), "unlocked", metav1.GetOptions{})
		if err == nil && !hasFinalizer(now) {
			err = errors.New("it has none")
		}
		return err
	})
	// The controller cannot cancel the job before the object is gone.
	p.setUnavailable(errors.New("away"))
	p.delete(unlocked)
	p.patch(unlocked, `{"metadata": {"finalizers": null}}`)
	p.awaitGone(unlocked)
	p.setUnavailable(nil)
	p.awaitCancelled(unlocked)
}

// testVanishedBeforeStored: an object went, with or without a successor of its name, while
// its job was submitted. The job is cancelled.
func testVanishedBeforeStored(p *fixture) {
	c, err := New(p.options(p.server.Config(p, "admin", "system:masters")))
	if err != nil {
		p.Fatal(err)
	}
	c.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[target]())
	defer c.queue.ShutDown()
	for name, succeeded := range map[string]bool{"gone": false, "again": true} {
		object := p.createJob(name)
		id, err := p.slurm.Submit(p.Context(), string(object.GetUID()), "1", emptyJob)
		if err != nil {
			p.Fatal(err)
		}
		p.delete(object)
		if succeeded {
			p.createJob(name)
		}
		if _, err := c.storeJob(p.Context(), targetOf(kinds.SlurmJob, object), object, kinds.Status{}, kinds.Status{JobID: id}); err == nil {
			p.Errorf("%s: the number was stored", name)
		}
		if c.queue.Len() != 1 {
			p.Fatalf("%s: nothing is to be done", name)
		}
		t, _ := c.queue.Get()
		if err := c.reconcile(p.Context(), t); err != nil {
			p.Error(err)
		}
		p.awaitCancelled(object)
	}
}

// testForgedNumber: a status with the number of another job of the user gives no power
// over that job.
func testForgedNumber(p *fixture) {
	victim, err := p.slurm.Submit(p.Context(), "victim", "1", emptyJob)
	if err != nil {
		p.Fatal(err)
	}
	object := p.createJob("forged")
	text := fmt.Appendf(nil, `{"status": {"jobID": %q}}`, victim)
	if _, err := p.objects(kinds.SlurmJob).Patch(p.Context(), "forged", "application/merge-patch+json", text, metav1.PatchOptions{}, "status"); err != nil {
		p.Fatal(err)
	}
	p.serve()
	p.awaitStatus(object, func(status kinds.Status) bool {
		return strings.HasPrefix(status.Message, "release the job: job "+victim+": no record of it is in --state-dir") && !status.Released
	})
	if err := p.objects(kinds.SlurmJob).Delete(p.Context(), "forged", metav1.DeleteOptions{}); err != nil {
		p.Fatal(err)
	}
	await(p, "deletion", func() error {
		_, err := p.objects(kinds.SlurmJob).Get(p.Context(), "forged", metav1.GetOptions{})
		if err == nil {
			err = errors.New("it is there")
		} else if apierrors.IsNotFound(err) {
			err = nil
		}
		return err
	})
	if jobs := p.slurm.of("victim"); len(jobs) != 1 || !jobs[0].held || jobs[0].State.State != "PENDING" {
		p.Errorf("got %+v", jobs)
	}
}

// testRejected checks that a rejected object has the reason in its status, and gets a job once
// its spec is corrected.
func testRejected(p *fixture) {
	p.serve()
	object := p.create(`{apiVersion: wlm.sylabs.io/v1alpha1, kind: SlurmJob, metadata: {name: cow}, spec: {batch: "#!/bin/sh\necho hello\n", nodeSelector: {wlm.sylabs.io/nodes: 2}}}`)
	status := p.awaitStatus(object, state(kinds.Rejected))
	if status.Status != "Failed" || !strings.HasPrefix(status.Message, "spec.nodeSelector: wlm.sylabs.io/nodes: give the job's size") || len(p.slurm.of(string(object.GetUID()))) != 0 {
		p.Errorf("got %+v", status)
	}
	if _, err := p.objects(kinds.SlurmJob).Patch(p.Context(), "cow", "application/merge-patch+json", []byte(`{"spec": {"nodeSelector": null}}`), metav1.PatchOptions{}); err != nil {
		p.Fatal(err)
	}
	if status := p.awaitStatus(object, state("RUNNING")); status.Message != "" {
		p.Errorf("got %+v", status)
	}
}

func testRefused(p *fixture) {
	p.slurm.refusal = &queue.Refused{Message: "invalid partition specified: skylake"}
	p.serve()
	long := p.createJob("long")
	p.awaitStatus(long, state(kinds.Rejected))
	p.slurm.mu.Lock()
	p.slurm.refusal = &queue.Refused{Message: strings.Repeat("ü", 1<<12)}
	p.slurm.mu.Unlock()
	p.patch(long, `{"spec": {"batch": "#!/bin/sh\nother"}}`)
	p.awaitStatus(long, func(s kinds.Status) bool {
		return len(s.Message) > kinds.MaxMessage-8 && len(s.Message) <= kinds.MaxMessage && strings.HasSuffix(s.Message, "ü...")
	})
	p.slurm.mu.Lock()
	p.slurm.refusal = &queue.Refused{Message: "invalid partition specified: skylake"}
	p.slurm.mu.Unlock()
	status := p.awaitStatus(p.createJob("a"), state(kinds.Rejected))
	if status.Message != "Slurm rejected the job: invalid partition specified: skylake" || status.JobID != "" {
		p.Errorf("got %+v", status)
	}
}

// testUnavailable checks that statuses say that Slurm does not answer, and that jobs are submitted
// and followed once it answers.
func testUnavailable(p *fixture) {
	p.serve()
	before := p.createJob("before")
	p.awaitStatus(before, state("RUNNING"))
	p.setUnavailable(&queue.Unavailable{Err: errors.New("Unable to contact slurm controller")})
	const says = "Slurm is unavailable: Unable to contact slurm controller"
	during := p.createJob("during")
	if status := p.awaitStatus(during, state(kinds.Waiting)); status.Message != says || status.Status != "Pending" {
		p.Errorf("got %+v", status)
	}
	p.awaitStatus(before, func(status kinds.Status) bool { return status.Message == says && status.State == "RUNNING" })
	p.setUnavailable(nil)
	for _, object := range []*unstructured.Unstructured{before, during} {
		p.awaitStatus(object, func(status kinds.Status) bool { return status.Message == "" && status.State == "RUNNING" })
		if jobs := p.slurm.of(string(object.GetUID())); len(jobs) != 1 || jobs[0].ran != 1 {
			p.Errorf("%s: got %+v", object.GetName(), jobs)
		}
	}
}

// testEdit checks that the API server refuses an edit that would not change the submitted job.
func testEdit(p *fixture) {
	p.serve()
	for _, test := range []struct{ manifest, edit, allowed string }{
		{fmt.Sprintf(slurmJob, "a"), `{"spec": {"batch": "#!/bin/sh\nother"}}`, `{"metadata": {"labels": {"a": "b"}}}`},
		{fmt.Sprintf(slurmJob, "b"), `{"spec": {"nodeSelector": {"wlm.sylabs.io/partition": "x"}}}`, `{"metadata": {"labels": {"a": "b"}}}`},
		{neighbour(p, "Bridge-Operator/samples/core/operator/job0slurm.yaml"), `{"spec": {"jobproperties": "{}"}}`, `{"spec": {"updateinterval": 30}}`},
	} {
		object := p.create(test.manifest)
		p.awaitStatus(object, state("RUNNING"))
		patch := func(text string) error {
			_, err := p.objects(kindOf(p, object)).Patch(p.Context(), object.GetName(), "application/merge-patch+json", []byte(text), metav1.PatchOptions{})
			return err
		}
		if err := patch(test.edit); err == nil || !strings.Contains(err.Error(), "the object has a Slurm job, which an edit would not change: delete the object and create another") {
			p.Errorf("%s: %v", test.edit, err)
		}
		if err := patch(test.allowed); err != nil {
			p.Errorf("%s: %v", test.allowed, err)
		}
	}
}

// testLargeScript submits a script of 1 MiB unchanged.
func testLargeScript(p *fixture) {
	p.serve()
	script := "#!/bin/sh\ncat <<'EOF'\n\"quotes\" 'Füße' $HOME\nEOF\n# " + strings.Repeat("ü", 1<<19) + "\n"
	object := parse(p, fmt.Sprintf(slurmJob, "large"))
	if err := unstructured.SetNestedField(object.Object, script, "spec", "batch"); err != nil {
		p.Fatal(err)
	}
	object, err := p.objects(kinds.SlurmJob).Create(p.Context(), object, metav1.CreateOptions{})
	if err != nil {
		p.Fatal(err)
	}
	p.awaitStatus(object, state("RUNNING"))
	if jobs := p.slurm.of(string(object.GetUID())); len(jobs) != 1 || jobs[0].script != script {
		p.Error("the script has changed")
	}
}

// testSchema checks that the API server refuses invalid specs, and names the field.
func testSchema(p *fixture) {
	for manifest, want := range map[string]string{
		`{apiVersion: wlm.sylabs.io/v1alpha1, kind: SlurmJob, metadata: {name: x}, spec: {}}`:                                                                                 "spec.batch: Required value",
		`{apiVersion: wlm.sylabs.io/v1alpha1, kind: SlurmJob, metadata: {name: x}}`:                                                                                           "spec: Required value",
		`{apiVersion: wlm.sylabs.io/v1alpha1, kind: SlurmJob, metadata: {name: x}, spec: {batch: "#!/bin/sh", results: {from: a}}}`:                                           "spec.results.mount: Required value",
		`{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, metadata: {name: x}, spec: {jobdata: {jobscript: a, scriptlocation: web}}}`:                                `spec.jobdata.scriptlocation: Unsupported value: "web"`,
		`{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, metadata: {name: x}, spec: {jobdata: {jobscript: a}, jobproperties: {Queue: a}}}`:                          "spec.jobproperties: Invalid value",
		`{apiVersion: wlm.sylabs.io/v1alpha1, kind: WlmJob, metadata: {name: x}, spec: {image: a, resources: {nodes: -1}}}`:                                                   "spec.resources.nodes: Invalid value",
		`{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, metadata: {name: x}, spec: {jobdata: {jobscript: a}, updateinterval: often}}`:                              "spec.updateinterval: Invalid value",
		`{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, metadata: {name: x}, spec: {jobdata: {jobscript: a}, s3upload: {files: a}}}`:                               "spec.s3upload.bucket: Required value",
		`{apiVersion: wlm.sylabs.io/v1alpha1, kind: SlurmJob, metadata: {name: x}, spec: {batch: "#!/bin/sh", nodeSelector: {"wlm.sylabs.io/partition": {"debug": "long"}}}}`: "Invalid value",
	} {
		object := parse(p, manifest)
		_, err := p.objects(kindOf(p, object)).Create(p.Context(), object, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), want) {
			p.Errorf("%s: got %v, want %q", manifest, err, want)
		}
	}
	for _, name := range []string{
		"Bridge-Operator/samples/core/operator/job0slurm.yaml", "wlm-operator/examples/batch-example.yaml", "wlm-operator/examples/cow.yaml", "wlm-operator/examples/fox.yaml",
	} {
		p.create(neighbour(p, name))
	}
}
