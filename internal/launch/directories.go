package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/programs"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/launch/command"
)

// directories holds a run's directories on this node.
type directories struct {
	scratch *rundir.Dir // on disk
	private *rundir.Dir // in memory, for the user's kubeconfig
	debug   debugDir
}

// create creates and locks a directory on disk and one in memory.
func (d *directories) create(disk, memory, runID string) (err error) {
	if d.scratch, err = rundir.Create(disk, runID); err != nil {
		return err
	}
	d.private, err = rundir.Create(memory, runID+rundir.PrivateSuffix)
	return err
}

// fill creates what the directories contain from the start.
func (d *directories) fill() error {
	if err := d.debug.open(); err != nil {
		return err
	}
	for _, name := range []string{"log", "kubelet", "volumes", "pod-logs", "var-log", "cni", "tmp"} {
		if err := os.Mkdir(filepath.Join(d.scratch.Path, name), 0o755); err != nil {
			return fmt.Errorf("make run directory: %w", err)
		}
	}
	return nil
}

// leave releases the locks. It removes the directories first, unless removed is set because
// the janitor does that.
func (d *directories) leave(removed bool) error {
	var err error
	for _, dir := range []*rundir.Dir{d.scratch, d.private} {
		if dir == nil {
			continue
		}
		if !removed {
			err = errors.Join(err, os.RemoveAll(dir.Path))
		}
		dir.Lock.Close()
		// This fails if the parent contains a directory of another run.
		_ = os.Remove(filepath.Dir(dir.Path))
	}
	return err
}

// log returns the path of a role's log. It is in the debug directory if the user
// wants to keep it, and otherwise in the run's directory.
func (d *directories) log(role string) string {
	dir := d.scratch.Path
	if d.debug != "" {
		dir = string(d.debug)
	}
	return filepath.Join(dir, "log", role+".log")
}

// write writes a file for other processes of the user on this host. what describes
// the action in errors.
func (d *directories) write(name string, content []byte, what string) error {
	if err := os.WriteFile(filepath.Join(d.private.Path, name), content, 0o600); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("%s: %w", what, err))
	}
	return nil
}

// writeKubeconfig writes the user's kubeconfig to the place where programs and
// tunnels look for it.
func (d *directories) writeKubeconfig(content []byte) error {
	return d.write(rundir.KubeconfigFile, content, "write kubeconfig")
}

// noteHead stores the name of the head for other processes on this host.
func (d *directories) noteHead(name string) error {
	// Replace the file atomically: without a name in it, this node would seem to be the
	// head.
	const what = "record the head's name"
	if err := d.write(rundir.HeadFile+".new", []byte(name), what); err != nil {
		return err
	}
	path := filepath.Join(d.private.Path, rundir.HeadFile)
	if err := os.Rename(path+".new", path); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("%s: %w", what, err))
	}
	return nil
}

// tools links kubectl and helm into the run's directory, and returns the paths that the
// command needs.
func (d *directories) tools() (command.Tools, error) {
	t := command.Tools{
		Kubeconfig: filepath.Join(d.private.Path, rundir.KubeconfigFile),
		Cache:      filepath.Join(d.scratch.Path, "tmp", "kubectl"),
		Bin:        filepath.Join(d.private.Path, "bin"),
	}
	return t, exitcode.Wrap(exitcode.NoSpace, programs.LinkTools(t.Bin))
}
