package interlink

import (
	"context"
	"errors"
	"fmt"
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

// elsewhere holds a connection to a cluster that the server does not send pods to any more, such
// as that of an earlier job. It is for the deletion of pods that still run there.
type elsewhere struct {
	mu      sync.Mutex // held during a deletion
	cluster *connected // nil for none
	idle    *time.Timer
	failed  map[string]failure // by job
}

// failure is the last attempt to connect to a cluster.
type failure struct {
	err error
	at  time.Time
}

// remove deletes the local pod of a foreign pod in the cluster that its JobID names. It succeeds
// if another cluster was started in the job, but not if the job has none.
func (e *elsewhere) remove(ctx context.Context, c *connection, jobID string, foreign *corev1.Pod) error {
	parts := strings.SplitN(jobID, "/", 3)
	job, uid := parts[0], parts[1]
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cluster == nil || e.cluster.Job != job || isClosed(e.cluster.Lost) {
		if last, ok := e.failed[job]; ok && time.Since(last.at) < elsewhereLimit {
			return last.err
		}
		e.close()
		connecting, cancel := context.WithTimeout(ctx, elsewhereLimit)
		defer cancel()
		cluster, err := c.connect(connecting, job)
		if err != nil {
			err = fmt.Errorf("%w of job %s: %w", errElsewhere, job, err)
			if ctx.Err() == nil {
				e.remember(job, err)
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

// remember stores the failure of an attempt to connect. The caller holds mu.
func (e *elsewhere) remember(job string, err error) {
	if e.failed == nil || len(e.failed) >= maxAnswers {
		e.failed = map[string]failure{}
	}
	e.failed[job] = failure{err, time.Now()}
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
func (e *elsewhere) close() {
	if e.cluster != nil {
		e.idle.Stop()
		e.cluster.Close()
		e.cluster = nil
	}
}

// closeLater closes the present connection when it was idle for elsewhereIdle. The caller holds
// mu.
func (e *elsewhere) closeLater() {
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
