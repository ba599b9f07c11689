package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/node/sandbox"
)

// imported is one line of output of the importing program.
type imported struct {
	Archive string `json:"archive"`
	Name    string `json:"name"`
	InPlace bool   `json:"inPlace"`
	Error   string `json:"error"`
}

// importImages imports the run's archives into containerd. It ends before any
// object is applied. The kubelet would pull the image of an earlier pod from a
// registry, fail, and wait for a back-off.
func (r *run) importImages(ctx context.Context) error {
	if len(r.archives) == 0 {
		return nil
	}
	return r.importArchives(ctx, r.archives, r.source)
}

// importArchives imports archives into containerd. On a node other than the head,
// archives that are not visible come from source.
func (r *run) importArchives(ctx context.Context, archives []archive, source archiveSource) error {
	r.importing.Lock() // the imports share a log and a directory for copies
	defer r.importing.Unlock()
	args := []string{"import", "--socket", r.plan.Paths.ContainerdSocket(), "--snapshotter", r.plan.Snapshotter}
	if !r.Spec.NoPull { // otherwise berth-images asks only the mirror
		args = append(args, "--hosts", r.plan.Paths.RegistryHosts(), "--mirror", r.plan.Registries.Mirror)
	}
	copies := copyPlaces{passing: filepath.Join(r.scratch.Path, "tmp", "archives")}
	defer os.RemoveAll(copies.passing)
	if r.plan.Snapshotter == cluster.EROFS {
		copies.inPlace = filepath.Join(r.scratch.Path, "sif")
	}
	var others *relay
	if source.Port != 0 {
		others = newRelay(source, hostnet.HostOf(r.members.head().RemoteAddr()), r.members.config.Ports)
		defer others.close()
	}
	for i, a := range archives {
		path, err := readable(ctx, i, a, others, copies)
		if err != nil {
			return err
		}
		if a.Name != "" {
			path = a.Name + "=" + path
		}
		args = append(args, path)
	}
	if err := r.supervisor.Await(ctx, "containerd"); err != nil {
		return err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reader.Close()
	command := sandbox.Command{
		Name: "images", Path: filepath.Join(r.plan.Paths.Libexec, "berth-images"), Args: args,
		Env: roleEnv(r.plan), Log: r.log("images"), Stdout: writer,
	}
	status, err := r.supervisor.RunOnce(r.box, command)
	writer.Close()
	if err != nil {
		return err
	}
	// The program may need long for an archive. It ends with the sandbox.
	defer context.AfterFunc(ctx, func() { reader.Close() })()
	var problems []error
	var done atomic.Int32
	defer tellOfImport(r.Log, &done, len(archives))()
	seen := map[string]bool{}
	lines := bufio.NewScanner(reader)
	for lines.Scan() {
		var line imported
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			continue // the log contains all other output
		}
		seen[line.Archive] = true
		done.Store(int32(len(seen)))
		if line.Error != "" {
			problems = append(problems, fmt.Errorf("import image archive %s: %s", line.Archive, line.Error))
			continue
		}
		if line.InPlace {
			line.Name += ", which stays where it is"
		}
		r.Log.Debug("imported " + line.Name)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case end := <-status:
		if len(problems) == 0 && end != (sandbox.Status{MaxRSS: end.MaxRSS}) {
			problems = append(problems, r.supervisor.FailedError("the import of images", "ended: "+end.String(), command.Log))
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return exitcode.Wrap(exitcode.NoInput, errors.Join(problems...))
}

// copyPlaces names the directories for copies of archives. passing holds copies
// that are imported and removed. inPlace holds SIF files that are used as they
// are, as long as the node lives. It is empty if the node uses none.
type copyPlaces struct{ passing, inPlace string }

// dir creates a directory for the copy of an archive.
func (c copyPlaces) dir(i int, a archive) (dir string, err error) {
	if a.SIF && c.inPlace != "" {
		if err = os.MkdirAll(c.inPlace, 0o700); err == nil {
			// Earlier copies may have the same number.
			dir, err = os.MkdirTemp(c.inPlace, "")
		}
		return dir, err
	}
	dir = filepath.Join(c.passing, strconv.Itoa(i))
	return dir, os.MkdirAll(dir, 0o700)
}

// firstImportReport is the time after which a running import is reported. The
// time until each further report doubles.
const firstImportReport = 5 * time.Second

// tellOfImport reports the progress of an import until it is stopped.
func tellOfImport(log *slog.Logger, done *atomic.Int32, all int) (stop func()) {
	began, stopped := time.Now(), make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		for wait := firstImportReport; ; wait *= 2 {
			select {
			case <-stopped:
				return
			case <-time.After(wait):
			}
			log.Info(fmt.Sprintf("importing images for %.0f s: %d of %d archives have been read", time.Since(began).Seconds(), done.Load(), all))
		}
	})
	return func() {
		close(stopped)
		telling.Wait()
	}
}

// readable returns the path of an archive on this node. It is a copy if this node
// does not see the head's file. others is nil on the head, which has all
// archives.
func readable(ctx context.Context, i int, a archive, others *relay, copies copyPlaces) (string, error) {
	if others == nil || a.here() {
		return a.Path, nil
	}
	if a.Root {
		return "", exitcode.Wrap(exitcode.NoInput, fmt.Errorf("use folder %s as an image: this node does not have it", a.Path))
	}
	dir, err := copies.dir(i, a)
	if err != nil {
		return "", exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("make a folder for image archives: %w", err))
	}
	path, err := others.fetch(ctx, i, a, dir)
	if err == nil {
		return path, nil
	}
	os.RemoveAll(dir) // an incomplete copy
	code := exitcode.Unavailable
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		code = exitcode.NoSpace
	}
	return "", exitcode.Wrap(code, fmt.Errorf("copy image archive %s from the head: %w", a.Path, err))
}
