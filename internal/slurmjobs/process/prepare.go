package process

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/script"
)

// here holds the names of this Slurm.
type here struct {
	urls, names []string
}

// check returns an error if a resourceURL names another Slurm.
func (h here) check(resource string) error {
	if resource == "" || slices.Contains(h.urls, resource) {
		return nil
	}
	parsed, err := url.Parse(resource)
	if err != nil {
		return fmt.Errorf("spec.resourceURL: %w", err)
	}
	host := parsed.Hostname()
	if host == "" { // a bare name is a path
		host = strings.Trim(parsed.Path, "/")
	}
	if host != "" && slices.Contains(h.names, host) {
		return nil
	}
	return fmt.Errorf("spec.resourceURL %q names no Slurm that is served here: use one of %s, or start 'berth slurm-jobs' with --resource-url %s",
		resource, strings.Join(h.names, ", "), resource)
}

// maxScript bounds a script that is read from a file.
const maxScript = 4 << 20

// maker makes jobs of requests.
type maker struct {
	here  here
	roots []string
	state string
}

func (m maker) prepare(object *unstructured.Unstructured, request kinds.Request) (queue.Job, error) {
	if err := m.here.check(request.ResourceURL); err != nil {
		return queue.Job{}, err
	}
	text := request.Script
	if request.ScriptFile != "" {
		var err error
		if text, err = readScript(m.roots[0], request.ScriptFile); err != nil {
			return queue.Job{}, err
		}
	}
	return script.Build(script.Description{
		UID: string(object.GetUID()), Object: object.GetNamespace() + "/" + object.GetName(), Script: text, State: m.state, Roots: m.roots,
		JobName: request.JobName, Partition: request.Partition, Nodes: request.Nodes, Tasks: request.Tasks, TimeLimit: request.TimeLimit,
		Features: request.Features, Dir: request.Dir, Output: request.Output, Error: request.Error, Path: request.Path, LibraryPath: request.LibraryPath,
	})
}

// openRegular opens a regular file for reading. It does not wait for the writer of a pipe.
func openRegular(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// readScript reads a script on this host. A relative path begins in home.
func readScript(home, path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(home, path)
	}
	file, err := openRegular(path)
	if err != nil {
		return nil, fmt.Errorf("read the script %s of spec.jobdata.jobscript: %w", path, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxScript+1))
	if err == nil && len(text) > maxScript {
		err = fmt.Errorf("it is larger than %d bytes", maxScript)
	}
	if err != nil {
		return nil, fmt.Errorf("read the script %s of spec.jobdata.jobscript: %w", path, err)
	}
	return text, nil
}
