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

// siblingVariable marks a process as a further node of its host.
const siblingVariable = "BERTH_SIBLING"

// Descriptors of a sibling.
const (
	siblingLifelineFD = 3
	siblingOrderFD    = 4
)

// siblingPatience bounds the wait for a sibling that should end.
const siblingPatience = 15 * time.Second

// errFirstEnded is why a sibling ends. There is nothing to say about it.
var errFirstEnded = errors.New("the first node of this host has ended")

// siblingOrder is what the first node of a host tells another one on the same
// host, which is a process of its own that was started with the same arguments.
type siblingOrder struct {
	// Index counts the nodes of the host; the first is 0.
	Index int
	Step  rendezvous.Step
	// Proof is what the nodes of this host prove themselves with; without one,
	// they all are on this host.
	Proof proof
}

// readSiblingOrder returns what this process was told, or the order of a first
// node. A sibling's context ends with the process that has started it.
func readSiblingOrder(getenv func(string) string, giveUp context.CancelCauseFunc) (siblingOrder, error) {
	if getenv(siblingVariable) == "" {
		return siblingOrder{}, nil
	}
	unix.CloseOnExec(siblingLifelineFD)
	unix.CloseOnExec(siblingOrderFD)
	file := os.NewFile(siblingOrderFD, "order")
	defer file.Close()
	var o siblingOrder
	if err := json.NewDecoder(io.NewSectionReader(file, 0, 1<<16)).Decode(&o); err != nil {
		return o, fmt.Errorf("read what this node is to be: %w; %s is not for users to set", err, siblingVariable)
	}
	go func() {
		_, _ = os.NewFile(siblingLifelineFD, "lifeline").Read(make([]byte, 1))
		giveUp(errFirstEnded)
	}()
	return o, nil
}

// siblings are the further nodes of this host.
type siblings struct {
	lifeline *os.File
	running  sync.WaitGroup
	started  []*exec.Cmd
}

// startSiblings starts count processes like this one.
func startSiblings(first siblingOrder, count int) (*siblings, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	s := &siblings{lifeline: writer}
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

func (s *siblings) start(told siblingOrder, lifeline *os.File) error {
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
	command.Env = append(os.Environ(), siblingVariable+"="+strconv.Itoa(told.Index))
	command.Stderr = os.Stderr
	command.ExtraFiles = []*os.File{lifeline, file}
	if err := command.Start(); err != nil {
		return err
	}
	s.started = append(s.started, command)
	s.running.Go(func() { _ = command.Wait() }) // its end shows at the head
	return nil
}

// end waits for all of them, which know that it is over.
func (s *siblings) end() {
	if s == nil {
		return
	}
	s.lifeline.Close()
	late := time.AfterFunc(siblingPatience, func() {
		for _, command := range s.started {
			_ = command.Process.Kill()
		}
	})
	defer late.Stop()
	s.running.Wait()
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
