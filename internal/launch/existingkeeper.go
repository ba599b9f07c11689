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

// KeeperArg starts this program again as the process that deletes the objects of a run on an
// existing cluster if the run is killed. main calls KeeperRole then.
const KeeperArg = "keeper-role"

const (
	// keeperLimit bounds the attempts to delete the owner of a killed run. After that, the
	// owner's deadline remains.
	keeperLimit = 2 * time.Minute
	// keeperContact is the interval of requests that keep the connection open. When the run is
	// killed in a step of Slurm, slurmstepd soon kills this process, too: there may be no time
	// for a new connection. API servers close a connection that was idle for 90 s.
	keeperContact = 45 * time.Second
)

// keeperConfig names the owner of a run's objects.
type keeperConfig struct {
	Kubeconfig      []byte
	Namespace, Name string
	UID             types.UID
}

// keeper is the run's view of that process.
type keeper struct {
	process *exec.Cmd
	life    *os.File
	gone    chan struct{}
}

// startKeeper starts the process. It notices the end of this one by the end of a pipe.
func startKeeper(kubeconfig []byte, owner *existing.Owner) (*keeper, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	var fds linux.FDTable
	fds.Add(fdLife, reader)
	k := &keeper{process: exec.Command("/proc/self/exe", KeeperArg), life: writer, gone: make(chan struct{})}
	k.process.Args[0] = "berth"
	err = fds.Start(k.process, keeperConfig{kubeconfig, owner.Namespace, owner.Name, owner.UID})
	reader.Close()
	if err != nil {
		writer.Close()
		return nil, fmt.Errorf("start the process that removes objects if this one is killed: %w", err)
	}
	go sandbox.KeepRunning(k.process.Process.Pid, k.gone)
	return k, nil
}

// end ends the process. It does not delete the owner then.
func (k *keeper) end() {
	close(k.gone)
	_ = k.process.Process.Kill()
	_ = k.process.Wait()
	k.life.Close()
}

// takeOver makes the process delete the owner, and does not wait for that.
func (k *keeper) takeOver() {
	close(k.gone)
	k.life.Close()
}

// KeeperRole runs the process and returns the exit status.
func KeeperRole() int {
	sandbox.OutliveSignals() // a signal to all processes of a step is for the run
	if err := keep(); err != nil {
		fmt.Fprintln(os.Stderr, "berth: "+err.Error())
		return 1
	}
	return 0
}

func keep() error {
	var config keeperConfig
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
	for over := false; !over; {
		go existing.Contact(client, config.Namespace, config.Name, keeperContact)
		select {
		case <-killed:
			over = true
		case <-time.After(keeperContact):
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), keeperLimit)
	defer cancel()
	return existing.DeleteRetrying(ctx, client, config.Namespace, config.Name, config.UID)
}
