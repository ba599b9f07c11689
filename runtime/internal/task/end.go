package task

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	gorunc "github.com/containerd/go-runc"

	"berth.dev/berth/runtime/internal/procfs"
)

// rounds bounds the searches for a container's processes. They are repeated because
// a process that was not yet stopped may have started another.
const rounds = 8

// endForMemory ends a container above its limit like a memory cgroup with
// memory.oom.group: all processes at once. It stops them first, so that they
// cannot grow while containerd receives the event. Only a container that is
// known to have run out of memory before it exits is reported as OOMKilled.
func (s *Service) endForMemory(ctx context.Context, id string, used, limit uint64) {
	c := s.container(id)
	if c == nil {
		return
	}
	s.log.Info("container is above its memory limit", "container", id, "used", used, "limit", limit)
	s.signalAll(id, c, syscall.SIGSTOP)

	// Do not wait longer: containerd may hang, and the memory must be freed nevertheless.
	publish, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, s.namespace), time.Second)
	defer cancel()
	err := s.publisher.Publish(publish, runtime.TaskOOMEventTopic, &events.TaskOOM{ContainerID: id})
	if err != nil {
		s.log.Error("report container out of memory", "container", id, "error", err)
	}
	s.signalAll(id, c, syscall.SIGKILL)
}

// signalAll sends a signal to all processes of a container, the first process
// first: if that process has its own PID namespace, its end ends the others.
func (s *Service) signalAll(id string, c *container, signal syscall.Signal) {
	done := map[int]uint64{}
	for range rounds {
		tree, err := s.tree()
		if err != nil {
			s.log.Error("list processes", "container", id, "error", err)
			return
		}
		fresh := 0
		for _, p := range tree[id] {
			if start, ok := done[p.PID]; ok && start == p.Start {
				continue
			}
			done[p.PID] = p.Start
			fresh++
			if err := syscall.Kill(p.PID, signal); err != nil && err != syscall.ESRCH {
				s.log.Error("signal process", "container", id, "pid", p.PID, "signal", signal, "error", err)
			}
		}
		if fresh == 0 {
			return
		}
	}
}

// Reap ends the processes that a container without its own PID namespace leaves
// behind. runc would use the cgroup, which does not exist. The container's end
// is not reported before its execs have ended.
func (s *Service) Reap(ctx context.Context, exits <-chan gorunc.Exit) {
	for {
		select {
		case <-ctx.Done():
			return
		case exit, ok := <-exits:
			if !ok {
				return
			}
			id, c := s.startedAs(exit.Pid)
			if c == nil {
				continue
			}
			if c.SharesPIDs && s.node.Controllers == nil {
				s.signalAll(id, c, syscall.SIGKILL)
			}
			s.mu.Lock()
			c.ended = true
			s.noteNamespaces()
			s.mu.Unlock()
		}
	}
}

// startedAs returns the running container with this first process; nil if there is none.
func (s *Service) startedAs(pid int) (string, *container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, c := range s.containers {
		if c.root.PID == pid && !c.ended {
			return id, c
		}
	}
	return "", nil
}

// namespacesFile is a file in the shim's bundle with the mount namespaces of a pod's
// live containers. With it the cleanup after a killed shim finds the processes:
// containerd then names only the first container. Ended containers are left out,
// because the kernel reuses the number of a namespace.
const namespacesFile = "mount-namespaces"

// noteNamespaces writes namespacesFile. The caller holds s.mu.
func (s *Service) noteNamespaces() {
	var text strings.Builder
	for _, c := range s.containers {
		if !c.ended && c.root.MountNamespace != "" {
			fmt.Fprintln(&text, c.root.MountNamespace)
		}
	}
	path := filepath.Join(s.dir, namespacesFile)
	err := os.WriteFile(path+".new", []byte(text.String()), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil && !os.IsNotExist(err) { // the bundle is removed before the shim ends
		s.log.Warn("processes may outlive a killed shim", "error", err)
	}
}

// EndLeftovers kills the processes of a pod after its shim was killed. dir is the shim's
// bundle. A bundle without a pod is no error.
func EndLeftovers(proc procfs.FS, dir string) error {
	endViews(dir)
	text, err := os.ReadFile(filepath.Join(dir, namespacesFile))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read mount namespaces of bundle: %w", err)
	}
	own, err := proc.MountNamespace(os.Getpid())
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for ns := range strings.FieldsSeq(string(text)) {
		wanted[ns] = ns != own
	}
	for range rounds {
		pids, err := proc.InMountNamespaces(wanted)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				return fmt.Errorf("kill process %d of bundle %s: %w", pid, dir, err)
			}
		}
	}
	return nil
}
