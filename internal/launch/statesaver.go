package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/kube/savedstate"
	"berth.dev/berth/internal/launch/allocation"
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
	log    *slog.Logger
	folder *savedstate.Folder
	// restored is the state of an earlier cluster. It is nil if there is none. continued holds
	// the part for its nodes of other jobs, or nil.
	restored  *savedstate.Snapshot
	continued *continuity
	// continuity returns what is saved for them. It is nil if none return.
	continuity func() *continuity
	// changed asks for a save soon.
	changed chan struct{}
	runID   string
	// socket is the listener where the control role serves the objects.
	socket *os.File
	// path is the path of the socket.
	path string
	// last holds the records of the last save, and lastFacts its facts.
	last      []savedstate.Record
	lastFacts savedstate.Facts
	// saving guards the folder. over is set when nothing may be saved any more.
	saving sync.Mutex
	over   bool
	stop   context.CancelFunc
	ended  chan struct{}
}

// openState acquires the folder for the state and reads its content. private is the
// directory for the saver's socket. openState returns nil if the run saves no state. A
// saver that it returns with an error must be closed, too.
func openState(ctx context.Context, o Options, job *allocation.Allocation, private string) (*stateSaver, error) {
	if o.Spec.State == "" {
		return nil, nil
	}
	var key []byte
	if o.Spec.StateSecrets != cluster.OmitSecrets {
		path, err := savedstate.KeyFile(o.Getenv)
		if err == nil {
			key, err = savedstate.Key(path)
		}
		if err != nil {
			return nil, exitcode.Wrap(exitcode.NoInput, err)
		}
	}
	folder, err := savedstate.Open(o.Spec.State, key, stateOwner(o.Getenv), func(owner savedstate.Owner) savedstate.Life {
		return lives(ctx, stateOwner(o.Getenv), owner, job)
	})
	if err != nil {
		return nil, exitcode.Wrap(exitcode.Config, err)
	}
	s := &stateSaver{log: o.Log, folder: folder, path: filepath.Join(private, stateSocket), changed: make(chan struct{}, 1), stop: func() {}}
	saved, found, err := folder.Load()
	if err != nil {
		return s, exitcode.Wrap(exitcode.NoInput, err)
	}
	if found {
		if err := s.restore(saved, o.Spec.State); err != nil {
			return s, err
		}
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: s.path})
	if err != nil {
		return s, exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("listen for the cluster's state: %w", err))
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close()
	s.socket, err = listener.File()
	return s, exitcode.Wrap(exitcode.Internal, err)
}

// restore prepares the objects in saved for the new cluster. Messages name folder, where
// they come from. It refuses objects of a newer Kubernetes.
func (s *stateSaver) restore(saved savedstate.Snapshot, folder string) error {
	if newer(saved.Facts.Kubernetes, cluster.KubernetesVersion) {
		return exitcode.Wrap(exitcode.Config, fmt.Errorf("restore the cluster from %s: its objects are from Kubernetes %s, and this is %s: use the newer berth (%s)",
			folder, saved.Facts.Kubernetes, cluster.KubernetesVersion, saved.Berth))
	}
	var err error
	if saved.Records, s.continued, err = splitContinuity(saved.Records); err != nil {
		return exitcode.Wrap(exitcode.NoInput, err)
	}
	s.restored = &saved
	s.log.Info(fmt.Sprintf("restoring %d objects of %s, saved %s", len(saved.Records), saved.Run, saved.Saved.Local().Format("2006-01-02 15:04:05")))
	if saved.Missing > 0 {
		s.log.Warn(fmt.Sprintf("%d Secrets were left out when the cluster was saved, or are left out now (--state-secrets): pods that need them wait until somebody makes them again", saved.Missing))
	}
	return nil
}

// previous returns what an earlier start of the job of a step has left for nodes of other
// jobs, or nil if none may return.
func (s *stateSaver) previous(own rendezvous.Step) *continuity {
	if s == nil || s.continued == nil || len(s.continued.Taken) == 0 || s.continued.Cluster != own.Cluster || s.continued.Job != own.Job {
		return nil
	}
	return s.continued
}

// takeRestored returns the state of an earlier cluster and forgets it, since it may be
// large. A further call returns nil. returning is set if nodes of other jobs return.
func (s *stateSaver) takeRestored(returning bool) (*sandbox.File, error) {
	if s == nil || s.restored == nil {
		return nil, nil
	}
	restored := s.restored
	s.restored = nil
	restored.Facts.Returning = returning
	var content bytes.Buffer
	err := savedstate.Write(&content, restored.Facts, restored.Records)
	return &sandbox.File{Mode: 0o600, Content: content.Bytes()}, err
}

// newer reports whether version a, such as v1.36.3, is newer than b.
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

// start saves the objects of a run regularly until finish.
func (s *stateSaver) start(runID string) {
	if s == nil {
		return
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.runID, s.ended = runID, make(chan struct{})
	go func() {
		defer close(s.ended)
		ticker := time.NewTicker(saveEvery)
		defer ticker.Stop()
		for said := ""; ; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			case <-s.changed:
			}
			err := s.save(ctx)
			if err == nil {
				err = s.folder.Renew()
			}
			if err == nil || ctx.Err() != nil {
				said = ""
				continue
			}
			if said != err.Error() { // once, not at every save
				s.log.Warn(err.Error())
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
	if s.continuity != nil {
		record, err := s.continuity().record()
		if err != nil {
			return err
		}
		records = append(records, record)
	}
	read := time.Since(began)
	if slices.EqualFunc(records, s.last, func(a, b savedstate.Record) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) }) {
		return nil
	}
	before := s.last
	s.last = records
	if err := s.write(facts); err != nil {
		s.last = before
		return err
	}
	s.log.Debug(fmt.Sprintf("saved %d objects in %s, including %s to read them", len(records), time.Since(began).Round(time.Millisecond), read.Round(time.Millisecond)))
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

// finish saves the objects for the last time. Objects that end later still belong
// to the saved state. Further calls have no effect.
func (s *stateSaver) finish() {
	if s == nil || s.ended == nil {
		return
	}
	s.stop()
	<-s.ended
	if err := s.save(context.Background()); err != nil {
		s.log.Warn(err.Error() + "; the next cluster is as this one was when it was last saved")
	}
	s.saving.Lock()
	s.over = true
	s.saving.Unlock()
}

// saveSoon saves the objects without waiting for the next regular time.
func (s *stateSaver) saveSoon() {
	if s == nil {
		return
	}
	select {
	case s.changed <- struct{}{}:
	default: // it is about to be saved
	}
}

// dismiss changes the last save so that no node of another job returns to the next head.
func (s *stateSaver) dismiss() error {
	if s == nil || s.continuity == nil {
		return nil
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	records, saved, err := splitContinuity(s.last)
	if err != nil || saved == nil || len(saved.Taken) == 0 {
		return err
	}
	saved.Taken = nil
	record, err := saved.record()
	if err != nil {
		return err
	}
	s.last = append(records, record)
	return s.write(s.lastFacts)
}

// write writes the last records into the folder. The caller holds saving.
func (s *stateSaver) write(facts savedstate.Facts) error {
	s.lastFacts = facts
	return s.folder.Save(savedstate.Snapshot{Facts: facts, Records: s.last, Berth: cluster.Version(), Run: s.runID, Saved: time.Now()})
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

// lives reports whether the run that owns the folder is alive. own and job are this
// run's.
func lives(ctx context.Context, own, o savedstate.Owner, job *allocation.Allocation) savedstate.Life {
	here := own.Host == o.Host && own.Boot == o.Boot
	switch {
	case here && linux.ProcessName(processID(o.Process)) == o.Process:
		return savedstate.Alive
	case here && job == nil, own.Host == o.Host && own.Boot != o.Boot:
		return savedstate.Dead
	case o.Job == "" || job == nil || own.Cluster != o.Cluster:
		return savedstate.Unknown
	case o.Job == own.Job && o.Attempt < own.Attempt:
		return savedstate.Dead // the job was requeued
	case o.Job == own.Job && here:
		return savedstate.Dead // an earlier step of the job
	}
	queued, known, err := slurm.QueuedJob(ctx, o.Job, job.Ask)
	switch {
	case err != nil:
		return savedstate.Unknown
	case !known:
		return savedstate.Dead
	}
	switch queued.State {
	case slurm.Running, slurm.Suspended, slurm.Completing, "STOPPED", "STAGE_OUT":
		if o.Job == own.Job {
			return savedstate.Unknown // another step, on another node
		}
		return savedstate.Alive
	}
	return savedstate.Dead
}

// processID returns the process id in a name that linux.ProcessName made, or 0.
func processID(name string) int {
	number, _, _ := strings.Cut(name, ":")
	pid, _ := strconv.Atoi(number)
	return pid
}
