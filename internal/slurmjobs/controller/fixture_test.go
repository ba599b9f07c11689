package controller

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/kube/control"
	"berth.dev/berth/internal/kube/control/controltest"
	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/testutil"
)

func TestMain(m *testing.M) { os.Exit(controltest.Run(m, control.Main)) }

// timeout limits each wait of a test.
const timeout = 60 * time.Second

// fixture is a namespace of the API server and a fake Slurm, for one part of TestController.
type fixture struct {
	*testing.T
	server    *controltest.Server
	client    dynamic.Interface
	namespace string
	slurm     *fakeSlurm
}

func (p *fixture) makeNamespace() {
	p.Helper()
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": p.namespace}}}
	namespaces := p.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	if _, err := namespaces.Create(p.Context(), namespace, metav1.CreateOptions{}); err != nil {
		p.Fatal(err)
	}
	for _, kind := range kinds.All() {
		// The API server serves a kind some time after it has accepted the definition.
		await(p, "serve "+kind.Plural, func() error {
			_, err := p.objects(kind).List(p.Context(), metav1.ListOptions{})
			return err
		})
	}
}

func (p *fixture) objects(kind kinds.Kind) dynamic.ResourceInterface {
	return p.client.Resource(kind.Resource()).Namespace(p.namespace)
}

// options returns the options of a controller of the namespace, with short intervals.
func (p *fixture) options(config *rest.Config) Options {
	options := Default()
	options.Config, options.Namespace, options.LeaseNamespace, options.Identity = config, p.namespace, p.namespace, "test"
	options.Slurm = p.slurm
	options.Forget = p.slurm.Forget
	options.Prepare = func(_ context.Context, object *unstructured.Unstructured, request kinds.Request) (queue.Job, error) {
		return queue.Job{Script: request.Script}, nil
	}
	options.Interval = 10 * time.Millisecond
	options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = 2*time.Second, time.Second, 20*time.Millisecond
	options.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	return options
}

// run runs a controller until the returned function is called.
func (p *fixture) run(options Options) (stop func()) {
	p.Helper()
	c, err := New(options)
	if err != nil {
		p.Fatal(err)
	}
	return p.start(c)
}

// start runs a controller until the returned function is called.
func (p *fixture) start(c *Controller) (stop func()) {
	ctx, cancel := context.WithCancel(p.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			p.Errorf("run: %v", err)
		}
	})
	p.Cleanup(stop)
	return stop
}

// serve runs a controller with the rights of an administrator.
func (p *fixture) serve() (stop func()) {
	return p.run(p.options(p.server.Config(p, "admin", "system:masters")))
}

// create creates an object from a manifest.
func (p *fixture) create(manifest string) *unstructured.Unstructured {
	p.Helper()
	object := parse(p, manifest)
	created, err := p.objects(kindOf(p, object)).Create(p.Context(), object, metav1.CreateOptions{})
	if err != nil {
		p.Fatal(err)
	}
	return created
}

func parse(t testing.TB, manifest string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &object.Object); err != nil {
		t.Fatal(err)
	}
	return object
}

func kindOf(t testing.TB, object *unstructured.Unstructured) kinds.Kind {
	t.Helper()
	kind, err := kinds.Of(object)
	if err != nil {
		t.Fatal(err)
	}
	return kind
}

// awaitStatus waits until want returns true for the status of an object, and returns the status.
func (p *fixture) awaitStatus(object *unstructured.Unstructured, want func(kinds.Status) bool) kinds.Status {
	p.Helper()
	var status kinds.Status
	await(p, "status of "+object.GetName(), func() error {
		now, err := p.objects(kindOf(p, object)).Get(p.Context(), object.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status, err = kinds.StatusOf(now); err == nil && !want(status) {
			err = fmt.Errorf("it is %+v", status)
		}
		return err
	})
	return status
}

// await calls check until it returns nil. The test fails after the timeout.
func await(t testing.TB, what string, check func() error) {
	t.Helper()
	testutil.Await(t, timeout, what, check)
}

// neighbour returns an example file of Bridge Operator or WLM-Operator, with its placeholders
// filled in.
func neighbour(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../test/neighbours", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("{{RESOURCE_URL}}", "http://cluster:6820/", "{{RESOURCE_SECRET}}", "mysecret",
		"{{JOBSCRIPT}}", "mybucket:slurm_batch.sh", "{{S3_SECRET}}", "mysecret-s3", "{{ENDPOINT}}", "minio:9000").Replace(string(text))
}

// slurmJob is a SlurmJob without its name.
const slurmJob = `{apiVersion: wlm.sylabs.io/v1alpha1, kind: SlurmJob, metadata: {name: %s}, spec: {batch: "#!/bin/sh\necho hello\n"}}`

// emptyJob prepares a job without a script, for Slurm.Submit.
func emptyJob() (queue.Job, error) { return queue.Job{}, nil }

func (p *fixture) createJob(name string) *unstructured.Unstructured {
	p.Helper()
	return p.create(fmt.Sprintf(slurmJob, name))
}

func state(want string) func(kinds.Status) bool {
	return func(status kinds.Status) bool { return status.State == want }
}

func (p *fixture) patch(object *unstructured.Unstructured, text string) {
	p.Helper()
	_, err := p.objects(kindOf(p, object)).Patch(p.Context(), object.GetName(), "application/merge-patch+json", []byte(text), metav1.PatchOptions{})
	if err != nil {
		p.Error(err)
	}
}

// setUnavailable sets the error of all calls of Slurm.
func (p *fixture) setUnavailable(err error) {
	p.slurm.mu.Lock()
	defer p.slurm.mu.Unlock()
	p.slurm.unavailable = err
}

func (p *fixture) delete(object *unstructured.Unstructured) {
	p.Helper()
	if err := p.objects(kindOf(p, object)).Delete(p.Context(), object.GetName(), metav1.DeleteOptions{}); err != nil {
		p.Error(err)
	}
}

func (p *fixture) awaitGone(object *unstructured.Unstructured) {
	p.Helper()
	await(p, object.GetName()+" goes", func() error {
		_, err := p.objects(kindOf(p, object)).Get(p.Context(), object.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
}

// awaitCancelled waits until the only job of an object is cancelled, and forgotten.
func (p *fixture) awaitCancelled(object *unstructured.Unstructured) {
	p.Helper()
	await(p, "the job of "+object.GetName()+" is cancelled", func() error {
		jobs := p.slurm.of(string(object.GetUID()))
		if len(jobs) != 1 || jobs[0].State.State != "CANCELLED" || !jobs[0].forgotten {
			return fmt.Errorf("got %+v", jobs)
		}
		return nil
	})
}

// awaitEvent waits for an event with a reason.
func (p *fixture) awaitEvent(reason string) {
	p.Helper()
	await(p, "event "+reason, func() error {
		events, err := p.client.Resource(eventsResource).Namespace(p.namespace).List(p.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Object["reason"] == reason {
				return nil
			}
		}
		return fmt.Errorf("there are %d others", len(events.Items))
	})
}

// awaitPolls waits until a controller has looked at Slurm some more times.
func (p *fixture) awaitPolls(more int) {
	p.Helper()
	polls := func() int {
		p.slurm.mu.Lock()
		defer p.slurm.mu.Unlock()
		return p.slurm.polls
	}
	from := polls()
	await(p, "polls", func() error {
		if now := polls(); now < from+more {
			return fmt.Errorf("%d of %d", now-from, more)
		}
		return nil
	})
}
