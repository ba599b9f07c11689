package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
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

// importImages imports the run's archives into containerd. It returns before any object is
// applied. Otherwise the kubelet could try to pull an image that is not imported yet, fail,
// and wait for its back-off.
func (n *node) importImages(ctx context.Context) error {
	if len(n.archives) == 0 {
		return nil
	}
	return n.importArchives(ctx, n.archives, n.source)
}

// importArchives imports archives into containerd. On a node other than the head,
// archives that are not visible come from source.
func (n *node) importArchives(ctx context.Context, archives []archive.Archive, source archive.Source) error {
	n.importing.Lock() // the imports share a log and a directory for copies
	defer n.importing.Unlock()
	args := []string{"import", "--socket", n.plan.Paths.ContainerdSocket(), "--snapshotter", n.plan.Snapshotter, "--budget", strconv.Itoa(max(1, n.plan.ImageBudget))}
	if !n.Spec.NoPull { // otherwise berth-images asks only the mirror
		args = append(args, "--hosts", n.plan.Paths.RegistryHosts(), "--mirror", n.plan.Registries.Mirror)
	}
	copies := archive.Places{Passing: filepath.Join(n.dirs.scratch.Path, "tmp", "archives")}
	defer os.RemoveAll(copies.Passing)
	if n.plan.Snapshotter == cluster.EROFS {
		copies.InPlace = filepath.Join(n.dirs.scratch.Path, "sif")
	}
	var others *archive.Relay
	if source.Port != 0 {
		others = archive.NewRelay(source, n.members.HeadAddress(), n.members.Ports())
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
	if err := n.supervisor.Await(ctx, "containerd"); err != nil {
		return err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reader.Close()
	command := sandbox.Command{
		Name: "images", Path: filepath.Join(n.plan.Paths.Libexec, "berth-images"), Args: args,
		Env: roleEnv(n.plan), Log: n.dirs.log("images"), Stdout: writer,
	}
	status, err := n.supervisor.RunOnce(n.box, command)
	writer.Close()
	if err != nil {
		return err
	}
	problems, err := readImports(ctx, n.Log, reader, len(archives))
	if err != nil {
		return err
	}
	select {
	case end := <-status:
		if len(problems) == 0 && end != (sandbox.Status{MaxRSS: end.MaxRSS}) {
			problems = append(problems, n.supervisor.FailedError("the import of images", "ended: "+end.String(), command.Log))
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return exitcode.Wrap(exitcode.NoInput, errors.Join(problems...))
}

// readImports reads the output of the program that imports archives, and returns an error
// for each archive that it could not import. It returns at once when ctx ends, because
// the program may need long for an archive. The program ends with the sandbox.
func readImports(ctx context.Context, log *slog.Logger, from io.ReadCloser, archives int) (problems []error, err error) {
	defer context.AfterFunc(ctx, func() { from.Close() })()
	var done atomic.Int32
	defer reportImport(log, &done, archives)()
	seen := map[string]bool{}
	lines := bufio.NewScanner(from)
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
		log.Debug("imported " + line.Name)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return problems, nil
}

// firstImportReport is the time after which a running import is reported. The
// time until each further report doubles.
const firstImportReport = 5 * time.Second

// reportImport logs the progress of an import until the caller calls stop.
func reportImport(log *slog.Logger, done *atomic.Int32, all int) (stop func()) {
	began, stopped := time.Now(), make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() {
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
		reporting.Wait()
	}
}
