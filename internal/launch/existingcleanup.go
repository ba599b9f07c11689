package launch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/kube/existing"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/node/sandbox"
)

// CleanerArg starts this program again as the process that deletes the objects of a run on an
// existing cluster if the run is killed. main then calls CleanerRole.
const CleanerArg = "cleaner-role"

const (
	// cleanerLimit bounds the time of the attempts to delete the owner. If all fail, the owner
	// expires at its deadline.
	cleanerLimit = 2 * time.Minute
	// cleanerContact is the interval of requests that keep the connection open. When the run
	// is killed in a step of Slurm, slurmstepd soon kills the cleaner, too, so there may be no
	// time for a new connection. API servers close connections that are idle for 90 s.
	cleanerContact = 45 * time.Second
)

// cleanerConfig is the input of a cleaner: the owner of a run's objects, and its cluster.
type cleanerConfig struct {
	Kubeconfig      []byte
	Namespace, Name string
	UID             types.UID
}

// cleaner is the process that deletes the owner of a run's objects if the run is killed.
type cleaner struct {
	process *exec.Cmd
	// life is the write end of the lifeline, whose end of file makes the process delete the
	// owner.
	life *os.File
	// gone ends KeepRunning, which continues the process after a SIGSTOP.
	gone chan struct{}
}

// startCleaner starts the cleaner of an owner, in the cluster of the kubeconfig.
func startCleaner(kubeconfig []byte, owner *existing.Owner) (*cleaner, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	var fds linux.FDTable
	fds.Add(fdLife, reader)
	c := &cleaner{process: exec.Command("/proc/self/exe", CleanerArg), life: writer, gone: make(chan struct{})}
	c.process.Args[0] = "berth"
	err = fds.Start(c.process, cleanerConfig{kubeconfig, owner.Namespace, owner.Name, owner.UID})
	reader.Close()
	if err != nil {
		writer.Close()
		return nil, fmt.Errorf("start the process that removes objects if this one is killed: %w", err)
	}
	go sandbox.KeepRunning(c.process.Process.Pid, c.gone)
	return c, nil
}

// end kills the cleaner before its lifeline closes, so that it does not delete the owner.
func (c *cleaner) end() {
	close(c.gone)
	_ = c.process.Process.Kill()
	_ = c.process.Wait()
	c.life.Close()
}

// takeOver makes the cleaner delete the owner, and does not wait for that.
func (c *cleaner) takeOver() {
	close(c.gone)
	c.life.Close()
}

// CleanerRole runs the cleaner and returns its exit status.
func CleanerRole() int {
	sandbox.OutliveSignals() // the run handles a signal to all processes of a step
	if err := cleanUp(); err != nil {
		fmt.Fprintln(os.Stderr, "berth: "+err.Error())
		return 1
	}
	return 0
}

// cleanUp waits until the lifeline closes, and then deletes the owner.
func cleanUp() error {
	var config cleanerConfig
	files, err := linux.ReceiveFiles(&config, fdLife)
	if err != nil {
		return fmt.Errorf("read what to remove: %w", err)
	}
	client, err := workload.NewClient(config.Kubeconfig)
	if err != nil {
		return err
	}
	killed := make(chan struct{})
	go func() {
		_, _ = files[fdLife].Read(make([]byte, 1))
		close(killed)
	}()
	for running := true; running; {
		go existing.Contact(client, config.Namespace, config.Name, cleanerContact)
		select {
		case <-killed:
			running = false
		case <-time.After(cleanerContact):
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanerLimit)
	defer cancel()
	return existing.DeleteRetrying(ctx, client, config.Namespace, config.Name, config.UID)
}
