package interlink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// elsewhereLimit bounds the time to connect to another cluster. After a failure, there is no
	// other attempt for as long, because each attempt may start a job step.
	elsewhereLimit = 30 * time.Second
	// elsewhereIdle is the time after which an unused connection to another cluster is closed.
	elsewhereIdle = time.Minute
)

// errElsewhere wraps the reason why another cluster of the user, which may run the pod, cannot
// be reached. The virtual node repeats the deletion later.
var errElsewhere = errors.New("the pod may still run in the berth cluster")

// elsewhere holds, by job, the clusters that the server does not send pods to any more. It is
// for the deletion of pods that still run there.
type elsewhere struct {
	mu   sync.Mutex
	jobs map[string]*earlierCluster
}

// earlierCluster holds the connection to one such cluster.
type earlierCluster struct {
	mu      sync.Mutex // held during a deletion
	cluster *connected // nil for none
	idle    *time.Timer
	// err is the error of the last attempt to connect, which ended at failed.
	err    error
	failed time.Time
}

// of returns the cluster of a job. It forgets those without a connection when there are too many.
func (e *elsewhere) of(job string) *earlierCluster {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.jobs == nil {
		e.jobs = map[string]*earlierCluster{}
	}
	if e.jobs[job] == nil {
		if len(e.jobs) >= maxAnswers {
			maps.DeleteFunc(e.jobs, func(_ string, c *earlierCluster) bool {
				if !c.mu.TryLock() {
					return false
				}
				defer c.mu.Unlock()
				return c.cluster == nil
			})
		}
		e.jobs[job] = &earlierCluster{}
	}
	return e.jobs[job]
}

// remove deletes the local pod of a foreign pod in the cluster that its JobID names. It succeeds
// if another cluster was started in the job, but not if the job has none.
func (e *elsewhere) remove(ctx context.Context, c *connection, jobID string, foreign *corev1.Pod) error {
	parts := strings.SplitN(jobID, "/", 3)
	return e.of(parts[0]).remove(ctx, c, parts[0], parts[1], foreign)
}

// remove deletes the local pod of a foreign pod if the cluster of the job has the UID.
func (e *earlierCluster) remove(ctx context.Context, c *connection, job, uid string, foreign *corev1.Pod) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cluster == nil || isClosed(e.cluster.Lost) {
		if e.err != nil && time.Since(e.failed) < elsewhereLimit {
			return e.err
		}
		e.close()
		connecting, cancel := context.WithTimeout(ctx, elsewhereLimit)
		defer cancel()
		cluster, err := c.connect(connecting, job)
		if err != nil {
			err = fmt.Errorf("%w of job %s: %w", errElsewhere, job, err)
			if ctx.Err() == nil {
				e.err, e.failed = err, time.Now()
			}
			return err
		}
		e.cluster = cluster
	}
	e.closeLater()
	if e.cluster.uid != uid {
		return nil // another cluster was started in the job
	}
	if err := removeFrom(ctx, e.cluster, foreign); err != nil {
		return fmt.Errorf("%w of job %s: %w", errElsewhere, job, err)
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// close closes the connection. The caller holds mu.
func (e *earlierCluster) close() {
	if e.cluster != nil {
		e.idle.Stop()
		e.cluster.Close()
		e.cluster = nil
	}
}

// closeLater closes the present connection when it was idle for elsewhereIdle. The caller holds
// mu.
func (e *earlierCluster) closeLater() {
	if e.idle != nil {
		e.idle.Stop()
	}
	cluster := e.cluster
	e.idle = time.AfterFunc(elsewhereIdle, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.cluster == cluster {
			e.close()
		}
	})
}
