package interlink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Cluster is an open connection to a berth cluster.
type Cluster struct {
	API typedcore.CoreV1Interface
	// Job is the ID of the Slurm job that the cluster runs in, or of the job step
	// (JOB.STEP).
	Job string
	// Lost is closed when the connection is lost.
	Lost <-chan struct{}
	// Close closes the connection.
	Close func()
}

// Finder finds the user's cluster.
type Finder interface {
	// Connect returns a connection to the cluster of a job, or the reason why there is none.
	// If job is empty, it is the cluster that the server sends pods to.
	Connect(ctx context.Context, job string) (*Cluster, error)
	// Ended returns the reason why the cluster of a job is gone for good. It returns ""
	// if the job runs, or if that is not known now.
	Ended(ctx context.Context, job string) string
}

const (
	// connectRetry is the first interval between attempts to connect. Each failure
	// doubles it, up to connectRetryLimit, because an attempt may start a job step.
	connectRetry      = 2 * time.Second
	connectRetryLimit = 30 * time.Second
	// runningTTL is the maximum age of a cached answer that a job still runs.
	runningTTL = 10 * time.Second
	// maxAnswers bounds the number of cached answers, and maxJob the length of a job's name in
	// bytes. Users of the other cluster can change JobIDs.
	maxAnswers = 1000
	maxJob     = 64
)

// errNoCluster wraps the reason why no cluster can be reached.
var errNoCluster = errors.New("no berth cluster can be reached")

// connected is a cluster with an identity.
type connected struct {
	*Cluster
	// uid is the UID of the namespace kube-system, which identifies a cluster. With
	// --ha, it stays the same after the loss of the head.
	uid string
	// pods holds copies of the local pods. Only watch sets it.
	pods cache.Store
}

// connection holds the connection to the cluster, and opens a new one after a loss.
type connection struct {
	finder Finder
	log    *slog.Logger

	mu      sync.Mutex
	current *connected
	reason  error         // the cause if current is nil
	changed chan struct{} // closed when current or reason changes

	// asking guards ended, which caches answers of finder.Ended by job. Only one query
	// runs at a time.
	asking sync.Mutex
	ended  map[string]endedAnswer
}

// endedAnswer is an answer of finder.Ended, and its time.
type endedAnswer struct {
	reason string
	at     time.Time
}

func newConnection(finder Finder, log *slog.Logger) *connection {
	return &connection{
		finder: finder, log: log, changed: make(chan struct{}), ended: map[string]endedAnswer{},
		reason: fmt.Errorf("%w: still connecting", errNoCluster),
	}
}

// keep connects to the cluster, and to the next one after each loss, until ctx ends.
func (c *connection) keep(ctx context.Context) {
	retry := connectRetry
	for ctx.Err() == nil {
		cluster, err := c.connect(ctx, "")
		if err != nil {
			c.set(nil, err)
			select {
			case <-ctx.Done():
			case <-time.After(retry):
			}
			retry = min(2*retry, connectRetryLimit)
			continue
		}
		retry = connectRetry
		stop := cluster.watch(ctx)
		c.set(cluster, nil)
		select {
		case <-ctx.Done():
		case <-cluster.Lost:
			c.set(nil, errors.New("the connection to the cluster of job "+cluster.Job+" was lost"))
		}
		stop()
		cluster.Close()
	}
}

// connect opens a connection, and reads the identity of the cluster.
func (c *connection) connect(ctx context.Context, job string) (*connected, error) {
	cluster, err := c.finder.Connect(ctx, job)
	if err != nil {
		return nil, err
	}
	system, err := cluster.API.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		cluster.Close()
		return nil, fmt.Errorf("identify the cluster of job %s: %w", cluster.Job, err)
	}
	return &connected{Cluster: cluster, uid: string(system.UID)}, nil
}

// set sets the current cluster, or the reason why there is none, and logs each change.
func (c *connection) set(cluster *connected, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("%w: %w", errNoCluster, err)
	}
	switch {
	case cluster != nil:
		c.log.Info("pods go to the cluster of job " + cluster.Job)
	case c.reason == nil || c.reason.Error() != err.Error():
		c.log.Warn(err.Error())
	}
	c.current, c.reason = cluster, err
	close(c.changed)
	c.changed = make(chan struct{})
}

// get returns the cluster, or an error with the reason why there is none.
func (c *connection) get() (*connected, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current, c.reason
}

// wait works like get, but waits for a cluster until ctx ends.
func (c *connection) wait(ctx context.Context) (*connected, error) {
	for {
		c.mu.Lock()
		current, reason, changed := c.current, c.reason, c.changed
		c.mu.Unlock()
		if current != nil {
			return current, nil
		}
		select {
		case <-ctx.Done():
			return nil, reason
		case <-changed:
		}
	}
}

// jobID returns the JobID of a local pod: JOB/UID/NAMESPACE/NAME.
func (c *connected) jobID(namespace, name string) string {
	return strings.Join([]string{c.Job, c.uid, namespace, name}, "/")
}

// ownJobID returns the JobID of a foreign pod, or "" if it has none. A pod that was made from
// the YAML of another pod has the JobID of that pod, which ownJobID ignores.
func ownJobID(foreign *corev1.Pod) string {
	id := foreign.Annotations[annotationJobID]
	own := localNamespace(foreign.Namespace) + "/" + localName(foreign.Name, foreign.UID)
	if parts := strings.SplitN(id, "/", 3); len(parts) == 3 && parts[2] != own {
		return ""
	}
	return id
}

// gone returns the reason why a pod with this JobID does not exist any more. The caller
// has not found the pod in the current cluster, which may be nil. gone returns "" if the
// pod may be in another cluster that still runs.
func (c *connection) gone(ctx context.Context, current *connected, jobID string) string {
	parts := strings.SplitN(jobID, "/", 3)
	if len(parts) < 3 || len(parts[0]) > maxJob {
		return "its JobID is not from berth: " + jobID
	}
	job, uid := parts[0], parts[1]
	if current != nil && current.uid == uid {
		return "the pod was deleted in the berth cluster of job " + job + ", or its node was lost"
	}
	if current != nil && current.Job == job {
		return "the berth cluster of job " + job + " has ended, and another one was started in the job"
	}
	c.asking.Lock()
	defer c.asking.Unlock()
	known, ok := c.ended[job]
	if !ok || known.reason == "" && time.Since(known.at) > runningTTL {
		if len(c.ended) >= maxAnswers {
			clear(c.ended)
		}
		known = endedAnswer{c.finder.Ended(ctx, job), time.Now()}
		c.ended[job] = known
	}
	if known.reason == "" {
		return ""
	}
	return "the berth cluster has ended: " + known.reason
}
