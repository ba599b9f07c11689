package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/proof"
)

// localMemberVariable marks a process as a further node of its host.
const localMemberVariable = "BERTH_SIBLING"

// Descriptors of a local member.
const (
	localMemberLifelineFD = 3
	localMemberConfigFD   = 4
)

// localMemberTimeout bounds the wait for a local member that should end.
const localMemberTimeout = 15 * time.Second

// errFirstEnded is the reason why a local member ends. It is not reported.
var errFirstEnded = errors.New("the first node of this host has ended")

// localMemberConfig is the configuration that the first node of a host sends to
// the others on the same host. Each is a process with the same arguments.
type localMemberConfig struct {
	// Index is the index among the nodes of the host. The first is 0.
	Index int
	Step  rendezvous.Step
	// Proof authenticates the nodes of this host to others. If it is empty, all
	// nodes are on this host.
	Proof proof.Proof
}

// readLocalMemberConfig returns the configuration of this process. It is empty
// for the first node of a host. A local member's context ends with the process
// that started it.
func readLocalMemberConfig(getenv func(string) string, giveUp context.CancelCauseFunc) (localMemberConfig, error) {
	if getenv(localMemberVariable) == "" {
		return localMemberConfig{}, nil
	}
	unix.CloseOnExec(localMemberLifelineFD)
	unix.CloseOnExec(localMemberConfigFD)
	file := os.NewFile(localMemberConfigFD, "order")
	defer file.Close()
	var o localMemberConfig
	if err := json.NewDecoder(io.NewSectionReader(file, 0, 1<<16)).Decode(&o); err != nil {
		return o, fmt.Errorf("read what this node is to be: %w; %s is not for users to set", err, localMemberVariable)
	}
	go func() {
		_, _ = os.NewFile(localMemberLifelineFD, "lifeline").Read(make([]byte, 1))
		giveUp(errFirstEnded)
	}()
	return o, nil
}

// localMembers holds the further nodes of this host.
type localMembers struct {
	lifeline *os.File
	running  sync.WaitGroup
	started  []*exec.Cmd
}

// startLocalMembers starts count further processes of this program.
func startLocalMembers(first localMemberConfig, count int) (*localMembers, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	s := &localMembers{lifeline: writer}
	for i := range count {
		told := first
		told.Index = i + 1
		if err := s.start(told, reader); err != nil {
			s.end()
			return nil, fmt.Errorf("start another node on this host: %w", err)
		}
	}
	return s, nil
}

func (l *localMembers) start(told localMemberConfig, lifeline *os.File) error {
	encoded, err := json.Marshal(told)
	if err != nil {
		return err
	}
	file, err := linux.MemoryFile("order", encoded)
	if err != nil {
		return err
	}
	defer file.Close()
	command := exec.Command("/proc/self/exe", os.Args[1:]...)
	command.Args[0] = os.Args[0]
	command.Env = append(os.Environ(), localMemberVariable+"="+strconv.Itoa(told.Index))
	command.Stderr = os.Stderr
	command.ExtraFiles = []*os.File{lifeline, file}
	if err := command.Start(); err != nil {
		return err
	}
	l.started = append(l.started, command)
	l.running.Go(func() { _ = command.Wait() }) // the head notices its end
	return nil
}

// end tells all local members to end, and waits for them.
func (l *localMembers) end() {
	if l == nil {
		return
	}
	l.lifeline.Close()
	late := time.AfterFunc(localMemberTimeout, func() {
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
