package launch

import (
	"context"
	"crypto/rand"
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
)

// localMemberVariable marks a process as a further node of its host.
const localMemberVariable = "BERTH_SIBLING"

// Descriptors of a sibling.
const (
	localMemberLifelineFD = 3
	localMemberConfigFD   = 4
)

// localMemberTimeout bounds the wait for a sibling that should end.
const localMemberTimeout = 15 * time.Second

// errFirstEnded is why a sibling ends. There is nothing to say about it.
var errFirstEnded = errors.New("the first node of this host has ended")

// localMemberConfig is what the first node of a host tells another one on the same
// host, which is a process of its own that was started with the same arguments.
type localMemberConfig struct {
	// Index counts the nodes of the host; the first is 0.
	Index int
	Step  rendezvous.Step
	// Proof is what the nodes of this host prove themselves with; without one,
	// they all are on this host.
	Proof proof
}

// readLocalMemberConfig returns what this process was told, or the order of a first
// node. A sibling's context ends with the process that has started it.
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

// localMembers are the further nodes of this host.
type localMembers struct {
	lifeline *os.File
	running  sync.WaitGroup
	started  []*exec.Cmd
}

// startLocalMembers starts count processes like this one.
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
	l.running.Go(func() { _ = command.Wait() }) // its end shows at the head
	return nil
}

// end waits for all of them, which know that it is over.
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

const keySize = 32

// newKey makes a key that nobody can guess.
func newKey() ([]byte, error) {
	key := make([]byte, keySize)
	_, err := rand.Read(key)
	return key, err
}

// memberName names a node of a host that may have several.
func memberName(host string, index int) string {
	if index == 0 {
		return host
	}
	return host + "-" + strconv.Itoa(index+1)
}
