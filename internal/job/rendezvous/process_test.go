package rendezvous

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/base/linux"
)

const (
	taskNode = "BERTH_TEST_RENDEZVOUS_NODE"
	taskJob  = "BERTH_TEST_RENDEZVOUS_JOB"
	taskTime = "BERTH_TEST_RENDEZVOUS_LOSS"
	taskLoss = 600 * time.Millisecond
)

// TestTask runs a task of a step, which the tests below start; it tests nothing itself.
// It reads the key from its standard input, as tasks under berth's own srun do.
func TestTask(t *testing.T) {
	node := os.Getenv(taskNode)
	if node == "" {
		t.Skip("started by other tests")
	}
	key := make([]byte, minKey)
	if _, err := io.ReadFull(os.Stdin, key); err != nil {
		t.Fatal(err)
	}
	prover, err := NewPreShared(key)
	if err != nil {
		t.Fatal(err)
	}
	loss, err := time.ParseDuration(os.Getenv(taskTime))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Step: Step{Job: os.Getenv(taskJob)}, Nodes: []string{"n1", "n2"}, Node: node,
		Prover: prover, Bind: loopback, Loss: loss,
	}
	var peer *Peer
	if node == "n1" {
		head, err := Listen(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		peer, err = head.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
	} else if peer, err = Join(t.Context(), cfg, []netip.Addr{loopback}); err != nil {
		t.Fatal(err)
	}
	fmt.Println("connected")
	<-peer.Done()
	var lost *LostError
	fmt.Println("lost", errors.As(peer.Err(), &lost), errors.Is(peer.Err(), errSilent))
}

type task struct {
	command *exec.Cmd
	lines   *bufio.Scanner
}

func (k *task) expect(t *testing.T, want string) {
	t.Helper()
	if !k.lines.Scan() || k.lines.Text() != want {
		t.Fatalf("the task says %q, want %q", k.lines.Text(), want)
	}
}

// signal sends a signal. After SIGSTOP it waits until the task has stopped.
func (k *task) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := k.command.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	if signal == syscall.SIGSTOP {
		eventually(t, "a task stops", func() bool {
			return linux.ProcessState(k.command.Process.Pid) == linux.ProcessStopped
		})
	}
}

// startTasks starts a head and a worker as processes. Each may be silent for as long as
// loss.
func startTasks(t *testing.T, loss time.Duration) (head, worker *task) {
	t.Helper()
	key, job := randomKey()[:minKey], fmt.Sprintf("%s-%d-%d", t.Name(), os.Getpid(), time.Now().UnixNano())
	start := func(node string) *task {
		command := exec.Command("/proc/self/exe", "-test.run=^TestTask$", "-test.timeout=1m")
		command.Env = append(os.Environ(), taskNode+"="+node, taskJob+"="+job, taskTime+"="+loss.String())
		command.Stderr = os.Stderr
		stdin, err1 := command.StdinPipe()
		stdout, err2 := command.StdoutPipe()
		if err := errors.Join(err1, err2, command.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			command.Process.Kill()
			command.Wait()
		})
		if _, err := stdin.Write(key); err != nil {
			t.Fatal(err)
		}
		return &task{command, bufio.NewScanner(stdout)}
	}
	head, worker = start("n1"), start("n2")
	head.expect(t, "connected")
	worker.expect(t, "connected")
	return head, worker
}

func TestTaskIsKilled(t *testing.T) {
	head, worker := startTasks(t, long)
	worker.signal(t, syscall.SIGKILL)
	head.expect(t, "lost true false")
}

func TestTaskHangs(t *testing.T) {
	head, worker := startTasks(t, taskLoss)
	worker.signal(t, syscall.SIGSTOP)
	head.expect(t, "lost true true")
}

// TestSuspendedTasks does what `scontrol suspend` and `resume` do. All tasks
// stop for much longer than a peer may be silent, and none may lose the other.
func TestSuspendedTasks(t *testing.T) {
	head, worker := startTasks(t, taskLoss)
	for range 2 {
		head.signal(t, syscall.SIGSTOP)
		worker.signal(t, syscall.SIGSTOP)
		<-time.After(3 * taskLoss)
		head.signal(t, syscall.SIGCONT)
		worker.signal(t, syscall.SIGCONT)
		<-time.After(2 * taskLoss)
	}
	// The head notices the worker's end first.
	worker.signal(t, syscall.SIGKILL)
	head.expect(t, "lost true false")
}
