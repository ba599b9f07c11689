package members

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/proof"
)

// localVariable marks a process as a further node of its host.
const localVariable = "BERTH_SIBLING"

// fdLifeline is the name of a file that a local member inherits.
const fdLifeline = "lifeline"

// localTimeout bounds the wait for a local member that should end.
const localTimeout = 15 * time.Second

// ErrFirstEnded is the reason why a local member ends. It is not reported.
var ErrFirstEnded = errors.New("the first node of this host has ended")

// LocalConfig is the configuration that the first node of a host sends to
// the others on the same host. Each is a process with the same arguments.
type LocalConfig struct {
	// Index is the index among the nodes of the host. The first is 0.
	Index int
	Step  rendezvous.Step
	// Proof authenticates the nodes of this host to others. If it is empty, all
	// nodes are on this host.
	Proof proof.Proof
}

// ReadLocalConfig returns the configuration of this process. It is empty
// for the first node of a host. A local member's context ends with the process
// that started it.
func ReadLocalConfig(getenv func(string) string, giveUp context.CancelCauseFunc) (LocalConfig, error) {
	if getenv(localVariable) == "" {
		return LocalConfig{}, nil
	}
	var o LocalConfig
	files, err := linux.ReceiveFiles(&o, fdLifeline)
	if err != nil {
		return o, fmt.Errorf("read what this node is to be: %w; %s is not for users to set", err, localVariable)
	}
	go func() {
		_, _ = files[fdLifeline].Read(make([]byte, 1))
		giveUp(ErrFirstEnded)
	}()
	return o, nil
}

// Local holds the further nodes of this host.
type Local struct {
	lifeline *os.File
	running  sync.WaitGroup
	started  []*exec.Cmd
}

// StartLocal starts count further processes of this program.
func StartLocal(first LocalConfig, count int) (*Local, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	s := &Local{lifeline: writer}
	for i := range count {
		config := first
		config.Index = i + 1
		if err := s.start(config, reader); err != nil {
			s.End()
			return nil, fmt.Errorf("start another node on this host: %w", err)
		}
	}
	return s, nil
}

func (l *Local) start(config LocalConfig, lifeline *os.File) error {
	command := exec.Command("/proc/self/exe", os.Args[1:]...)
	command.Args[0] = os.Args[0]
	command.Env = append(os.Environ(), localVariable+"="+strconv.Itoa(config.Index))
	command.Stderr = os.Stderr
	var fds linux.FDTable
	fds.Add(fdLifeline, lifeline)
	if err := fds.Start(command, config); err != nil {
		return err
	}
	l.started = append(l.started, command)
	l.running.Go(func() { _ = command.Wait() }) // the head notices its end
	return nil
}

// End ends all local members, and waits for them.
func (l *Local) End() {
	if l == nil {
		return
	}
	l.lifeline.Close()
	late := time.AfterFunc(localTimeout, func() {
		for _, command := range l.started {
			_ = command.Process.Kill()
		}
	})
	defer late.Stop()
	l.running.Wait()
}

// memberName returns the name of a node on a host that may have several.
func memberName(host string, index int) string {
	if index == 0 {
		return host
	}
	return host + "-" + strconv.Itoa(index+1)
}
