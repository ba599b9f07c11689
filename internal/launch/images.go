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
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/archive"
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
func (r *run) importArchives(ctx context.Context, archives []archive.Archive, source archive.Source) error {
	r.importing.Lock() // the imports share a log and a directory for copies
	defer r.importing.Unlock()
	args := []string{"import", "--socket", r.plan.Paths.ContainerdSocket(), "--snapshotter", r.plan.Snapshotter}
	if !r.Spec.NoPull { // otherwise berth-images asks only the mirror
		args = append(args, "--hosts", r.plan.Paths.RegistryHosts(), "--mirror", r.plan.Registries.Mirror)
	}
	copies := archive.Places{Passing: filepath.Join(r.scratch.Path, "tmp", "archives")}
	defer os.RemoveAll(copies.Passing)
	if r.plan.Snapshotter == cluster.EROFS {
		copies.InPlace = filepath.Join(r.scratch.Path, "sif")
	}
	var others *archive.Relay
	if source.Port != 0 {
		others = archive.NewRelay(source, r.members.HeadAddress(), r.members.Ports())
		defer others.Close()
	}
	for i, a := range archives {
		path, err := archive.Readable(ctx, i, a, others, copies)
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
