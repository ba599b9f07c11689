package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/kube/savedstate"
	"berth.dev/berth/internal/node/sandbox"
)

const (
	// saveEvery is the interval between saves. A crash of everything loses at
	// most the changes of this time.
	saveEvery = 30 * time.Second
	// saveLimit bounds one save, because the control plane may be about to die.
	saveLimit = 5 * time.Second
	// stateSocket is the name of a socket in the run's directory in memory.
	stateSocket = "state"
)

// stateSaver saves the objects of a cluster for the next one. It is nil if the
// run saves none.
type stateSaver struct {
	run    *run
	folder *savedstate.Folder
	// socket is the listener where the control role serves the objects.
	socket *os.File
	path   string
	last   []savedstate.Record
	// saving guards the folder. over is set when nothing may be saved any more.
	saving sync.Mutex
	over   bool
	stop   context.CancelFunc
	ended  chan struct{}
}

// openState acquires the folder for the state and reads its content, before
// anything starts.
func (r *run) openState(ctx context.Context) error {
	if r.Spec.State == "" || !r.members.Leads() {
		return nil
	}
	var key []byte
	if r.Spec.StateSecrets != cluster.OmitSecrets {
		path, err := savedstate.KeyFile(r.Getenv)
		if err == nil {
			key, err = savedstate.Key(path)
		}
		if err != nil {
			return exitcode.Wrap(exitcode.NoInput, err)
		}
	}
	folder, err := savedstate.Open(r.Spec.State, key, stateOwner(r.Getenv), func(o savedstate.Owner) savedstate.Life {
		return r.lives(ctx, o)
	})
	if err != nil {
		return exitcode.Wrap(exitcode.Config, err)
	}
	k := &stateSaver{run: r, folder: folder, path: filepath.Join(r.private.Path, stateSocket), stop: func() {}}
	r.saver = k
	saved, found, err := folder.Load()
	if err != nil {
		return exitcode.Wrap(exitcode.NoInput, err)
	}
	if found {
		if err := k.restore(saved); err != nil {
			return err
		}
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: k.path})
	if err != nil {
		return exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("listen for the cluster's state: %w", err))
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close()
	k.socket, err = listener.File()
	return exitcode.Wrap(exitcode.Internal, err)
}

// restore prepares the objects for the new cluster.
func (s *stateSaver) restore(saved savedstate.Snapshot) error {
	r := s.run
	if newer(saved.Facts.Kubernetes, cluster.KubernetesVersion) {
		return exitcode.Wrap(exitcode.Config, fmt.Errorf("restore the cluster from %s: its objects are from Kubernetes %s, and this is %s: use the newer berth (%s)",
			r.Spec.State, saved.Facts.Kubernetes, cluster.KubernetesVersion, saved.Berth))
	}
	var content bytes.Buffer
	if err := savedstate.Write(&content, saved.Facts, saved.Records); err != nil {
		return err
	}
	r.restored = &sandbox.File{Mode: 0o600, Content: content.Bytes()}
	r.Log.Info(fmt.Sprintf("restoring %d objects of %s, saved %s", len(saved.Records), saved.Run, saved.Saved.Local().Format("2006-01-02 15:04:05")))
	if saved.Missing > 0 {
		r.Log.Warn(fmt.Sprintf("%d Secrets were left out when the cluster was saved, or are left out now (--state-secrets): pods that need them wait until somebody makes them again", saved.Missing))
	}
	return nil
}

// newer compares versions such as v1.36.3.
func newer(a, b string) bool {
	return slices.Compare(numbers(a), numbers(b)) > 0
}

func numbers(version string) []int {
	var all []int
	for part := range strings.SplitSeq(strings.TrimPrefix(version, "v"), ".") {
		n, _ := strconv.Atoi(part)
		all = append(all, n)
	}
	return all
}

// keepState saves the objects regularly until finishState.
func (r *run) keepState() {
	k := r.saver
	if k == nil {
		return
	}
	var ctx context.Context
	ctx, k.stop = context.WithCancel(context.Background())
	k.ended = make(chan struct{})
	go func() {
		defer close(k.ended)
		ticker := time.NewTicker(saveEvery)
		defer ticker.Stop()
		for said := ""; ; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			err := k.save(ctx)
			if err == nil {
				err = k.folder.Renew()
			}
			if err == nil || ctx.Err() != nil {
				said = ""
				continue
			}
			if said != err.Error() { // once, not at every save
				r.Log.Warn(err.Error())
			}
			said = err.Error()
		}
	}()
}

// save saves the objects if they have changed.
func (s *stateSaver) save(ctx context.Context) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	if s.over {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, saveLimit)
	defer cancel()
	began := time.Now()
	facts, records, err := s.read(ctx)
	if err != nil {
		return fmt.Errorf("save the state of the cluster: %w", err)
	}
	read := time.Since(began)
	if slices.EqualFunc(records, s.last, func(a, b savedstate.Record) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) }) {
		return nil
	}
	err = s.folder.Save(savedstate.Snapshot{Facts: facts, Records: records, Berth: cluster.Version(), Run: s.run.plan.RunID, Saved: time.Now()})
	if err != nil {
		return err
	}
	s.last = records
	s.run.Log.Debug(fmt.Sprintf("saved %d objects in %s, of which %s to read them", len(records), time.Since(began).Round(time.Millisecond), read.Round(time.Millisecond)))
	return nil
}

// read reads the objects from the control role.
func (s *stateSaver) read(ctx context.Context) (savedstate.Facts, []savedstate.Record, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", s.path)
	if err != nil {
		return savedstate.Facts{}, nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	facts, records, err := savedstate.Read(conn)
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return facts, records, err
}

// finishState saves the objects for the last time. Objects that end later still
// belong to the saved state. Further calls have no effect.
func (r *run) finishState() {
	k := r.saver
	if k == nil || k.ended == nil {
		return
	}
	k.stop()
	<-k.ended
	if err := k.save(context.Background()); err != nil {
		r.Log.Warn(err.Error() + "; the next cluster is as this one was when it was last saved")
	}
	k.saving.Lock()
	k.over = true
	k.saving.Unlock()
}

// close releases the folder for other runs.
func (s *stateSaver) close() error {
	if s == nil {
		return nil
	}
	s.stop()
	if s.socket != nil {
		s.socket.Close()
	}
	return s.folder.Close()
}

// stateOwner identifies this run to others that want the same folder.
func stateOwner(getenv func(string) string) savedstate.Owner {
	attempt, _ := strconv.Atoi(getenv("SLURM_RESTART_COUNT"))
	host, _ := os.Hostname()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return savedstate.Owner{
		Cluster: getenv("SLURM_CLUSTER_NAME"), Job: getenv("SLURM_JOB_ID"), Attempt: attempt,
		Host: host, Boot: strings.TrimSpace(string(boot)), Process: linux.ProcessName(os.Getpid()),
	}
}

// lives reports whether the run that owns the folder is alive.
func (r *run) lives(ctx context.Context, o savedstate.Owner) savedstate.Life {
	own := stateOwner(r.Getenv)
	here := own.Host == o.Host && own.Boot == o.Boot
	switch {
	case here && linux.ProcessName(processID(o.Process)) == o.Process:
		return savedstate.Alive
	case here && r.allocation == nil, own.Host == o.Host && own.Boot != o.Boot:
		return savedstate.Dead
	case o.Job == "" || r.allocation == nil || own.Cluster != o.Cluster:
		return savedstate.Unknown
	case o.Job == own.Job && o.Attempt < own.Attempt:
		return savedstate.Dead // the job was requeued
	case o.Job == own.Job && here:
		return savedstate.Dead // an earlier step of the job
	}
	job, known, err := slurm.QueuedJob(ctx, o.Job, r.allocation.Ask)
	switch {
	case err != nil:
		return savedstate.Unknown
	case !known:
		return savedstate.Dead
	}
	switch job.State {
	case slurm.Running, slurm.Suspended, slurm.Completing, "STOPPED", "STAGE_OUT":
		if o.Job == own.Job {
			return savedstate.Unknown // another step, on another node
		}
		return savedstate.Alive
	}
	return savedstate.Dead
}

// processID returns the number in the name of a process.
func processID(name string) int {
	number, _, _ := strings.Cut(name, ":")
	pid, _ := strconv.Atoi(number)
	return pid
}
