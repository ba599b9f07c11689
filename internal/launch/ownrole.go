package launch

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/launch/supervisor"
)

// ownRole returns a role that starts this program again, in the namespaces of the host, because it
// calls Slurm's commands. It receives the configuration, and files by their names. The end of
// fdLife tells it that this process has ended, or has called end, which waits at most limit for
// the end of the role. Call end after IgnoreExits only.
func ownRole(s *supervisor.Supervisor, name, argument string, config any, files map[string]*os.File) (role *supervisor.Role, end func(limit time.Duration)) {
	var child *os.Process
	var life *os.File
	var ended chan struct{}
	role = &supervisor.Role{
		Name: name, Outside: true, Silent: true, Optional: true,
		Start: func(r *supervisor.Role, _ []*os.File) error {
			log, err := os.OpenFile(r.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				return fmt.Errorf("open log: %w", err)
			}
			defer log.Close()
			theirs, ours, err := os.Pipe()
			if err != nil {
				return fmt.Errorf("make pipe: %w", err)
			}
			defer theirs.Close()
			var fds linux.FDTable
			fds.Add(fdLife, theirs)
			for name, file := range files {
				fds.Add(name, file)
			}
			command := exec.Command("/proc/self/exe", argument)
			command.Args[0] = "berth"
			command.Dir = "/"
			command.Stdout, command.Stderr = log, log
			command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := fds.Start(command, config); err != nil {
				ours.Close()
				return err
			}
			gone := make(chan struct{})
			child, life, ended = command.Process, ours, gone
			s.Go(func() {
				_ = command.Wait()
				close(gone)
				ours.Close()
				s.Ended(r.Name, supervisor.Status(command.ProcessState))
			})
			return nil
		},
		Kill:   func(*supervisor.Role) { _ = child.Kill() },
		Resume: func() bool { return linux.Resume(child.Pid) },
	}
	return role, func(limit time.Duration) {
		if life == nil {
			return
		}
		life.Close()
		select {
		case <-ended:
		case <-time.After(limit):
		}
	}
}
