package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/launch/supervisor"
)

// ownRole returns a role that starts this program again, in the namespaces of the host, because it
// calls Slurm's commands. It receives the configuration, and files by their names. The end of
// fdLife tells it that this process has ended, or has called end. end passes a word to it before
// that, and returns a channel that is closed when the role has ended. The role is not started again
// then. Further calls of end change nothing.
func ownRole(s *supervisor.Supervisor, name, argument string, config any, files map[string]*os.File) (role *supervisor.Role, end func(word string) <-chan struct{}) {
	var child *os.Process
	// mu guards the variables below. ended is closed when there is no process.
	var mu sync.Mutex
	var life *os.File
	var ending bool
	ended := make(chan struct{})
	close(ended)
	role = &supervisor.Role{
		Name: name, Outside: true, Silent: true, Optional: true,
		Start: func(r *supervisor.Role, _ []*os.File) error {
			mu.Lock()
			defer mu.Unlock()
			if ending {
				return errors.New("the run ends")
			}
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
				ours.Close()
				mu.Lock()
				expected := ending
				close(gone)
				mu.Unlock()
				if !expected {
					s.Ended(r.Name, supervisor.Status(command.ProcessState))
				}
			})
			return nil
		},
		Kill: func(*supervisor.Role) { _ = child.Kill() },
		Resume: func() bool {
			mu.Lock()
			defer mu.Unlock()
			select {
			case <-ended:
				return false // another process may have its number
			default:
				return linux.Resume(child.Pid)
			}
		},
	}
	return role, func(word string) <-chan struct{} {
		mu.Lock()
		defer mu.Unlock()
		if !ending && life != nil {
			_, _ = io.WriteString(life, word) // a role that has ended needs none
			life.Close()
		}
		ending = true
		return ended
	}
}
