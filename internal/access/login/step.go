package login

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/access/jobend"
	"berth.dev/berth/internal/job/slurm"
)

// stepEnd limits how long srun may take to end after its input was closed.
const stepEnd = 3 * time.Second

// step is the srun process that runs the far end of a tunnel.
type step struct {
	process *exec.Cmd
	in      io.WriteCloser
	out     io.ReadCloser
	said    tail
	ended   chan struct{} // closed when srun has ended
}

func (s *step) Read(p []byte) (int, error)  { return s.out.Read(p) }
func (s *step) Write(p []byte) (int, error) { return s.in.Write(p) }

// Close makes the far end exit, and srun with it.
func (s *step) Close() error {
	s.in.Close()
	return s.out.Close()
}

// startStep starts the far end on a node of the job, or on the first node if node
// is empty; see slurm.IntoCommand. Call it from a locked thread, because srun ends
// with that thread.
func startStep(program, job, node string, heterogeneous bool) (*step, error) {
	command := slurm.IntoCommand(job, node, heterogeneous, program, jobend.Arg)
	s := &step{process: exec.Command(command[0], command[1:]...), ended: make(chan struct{})}
	s.process.Env = slurm.IntoEnv(os.Environ())
	s.process.Dir = "/"
	s.process.Stderr = &s.said
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var err error
	if s.in, err = s.process.StdinPipe(); err != nil {
		return nil, err
	}
	reader, writer, err := os.Pipe() // not StdoutPipe: Wait would close it before everything is read
	if err != nil {
		return nil, err
	}
	s.out, s.process.Stdout = reader, writer
	err = s.process.Start()
	writer.Close()
	if err != nil {
		reader.Close()
		return nil, fmt.Errorf("start srun: %w", err)
	}
	go func() {
		defer close(s.ended)
		_ = s.process.Wait() // only the output matters, not the status
	}()
	return s, nil
}

// end waits for srun to end, and kills it if necessary.
func (s *step) end() {
	s.Close()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		select {
		case <-s.ended:
			return
		case <-time.After(stepEnd):
			_ = s.process.Process.Signal(signal)
		}
	}
	<-s.ended
}

// tailLimit bounds the kept part of srun's output.
const tailLimit = 4 << 10

// tail keeps the last bytes written to it.
type tail struct {
	mu   sync.Mutex
	kept bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept.Write(p)
	if excess := t.kept.Len() - tailLimit; excess > 0 {
		t.kept.Next(excess)
	}
	return len(p), nil
}

// outsideMessages lists parts of srun's messages about connections to its ports from
// outside the step, for example from a port scanner.
var outsideMessages = []string{"eio_message_socket_accept", "io_init_msg", "io init message"}

// text returns the kept output as one line.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lines []string
	for line := range strings.Lines(t.kept.String()) {
		if line = strings.TrimSpace(line); line != "" && !slices.ContainsFunc(outsideMessages, func(word string) bool { return strings.Contains(line, word) }) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
