package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/container"
	"berth.dev/berth/internal/slurmjobs/joblog"
	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/results"
	"berth.dev/berth/internal/slurmjobs/script"
)

// slurmNames holds the names of this Slurm: values of resourceURL, and hosts of such URLs.
type slurmNames struct {
	urls, hosts []string
}

// check returns an error if a resourceURL names another Slurm.
func (n slurmNames) check(resource string) error {
	if resource == "" || slices.Contains(n.urls, resource) {
		return nil
	}
	parsed, err := url.Parse(resource)
	if err != nil {
		return fmt.Errorf("spec.resourceURL: %w", err)
	}
	host := parsed.Hostname()
	if host == "" { // url.Parse takes a bare name for a path
		host = strings.Trim(parsed.Path, "/")
	}
	if host != "" && slices.Contains(n.hosts, host) {
		return nil
	}
	return fmt.Errorf("spec.resourceURL %q names no Slurm that is served here: use one of %s, or start 'berth slurm-jobs' with --resource-url %s",
		resource, strings.Join(n.hosts, ", "), resource)
}

// maxScript is the largest size of a script that is read from a file, in bytes.
const maxScript = 4 << 20

// preparer prepares the jobs of objects. The fields are as in Options.
type preparer struct {
	names slurmNames
	roots []string
	state string
	berth string
	// image is the image of the pods that copy files, and volumes holds the types of volumes
	// that they may mount.
	image   string
	volumes []string
	storage storage
}

// prepare returns the job for an object. It is the controller's Prepare.
func (p preparer) prepare(ctx context.Context, object *unstructured.Unstructured, request kinds.Request) (queue.Job, error) {
	if err := p.names.check(request.ResourceURL); err != nil {
		return queue.Job{}, err
	}
	name := object.GetNamespace() + "/" + object.GetName()
	text := request.Script
	var err error
	switch {
	case request.Container != nil:
		text, err = container.Script(name, request.Nodes, *request.Container, container.Options{Berth: p.berth, Roots: p.roots})
	case request.ScriptFile != "":
		text, err = readScript(p.roots[0], request.ScriptFile)
	case request.ScriptObject != nil:
		text, err = p.readObject(ctx, object.GetNamespace(), request)
	}
	if err != nil {
		return queue.Job{}, err
	}
	if request.Results != nil {
		if err := p.checkVolume("spec.results", request.Results.Volume); err != nil {
			return queue.Job{}, err
		}
	}
	if request.Upload != nil {
		if err := p.checkUpload(ctx, object, request, text); err != nil {
			return queue.Job{}, err
		}
	}
	job, err := script.Build(p.describe(object, request, text))
	if err != nil || request.Inputs == nil {
		return job, err
	}
	if err := p.checkVolume("spec.prepare", request.Inputs.Volume); err != nil {
		return queue.Job{}, err
	}
	_, err = p.destination(request, job)
	return job, err
}

// describe returns the description of the job of an object.
func (p preparer) describe(object *unstructured.Unstructured, request kinds.Request, text []byte) script.Description {
	return script.Description{
		UID: string(object.GetUID()), Object: object.GetNamespace() + "/" + object.GetName(), Script: text, State: p.state, Roots: p.roots,
		JobName: request.JobName, Partition: request.Partition, Nodes: request.Nodes, Tasks: request.Tasks, TimeLimit: request.TimeLimit,
		Features: request.Features, Dir: request.Dir, Output: request.Output, Error: request.Error, Path: request.Path, LibraryPath: request.LibraryPath,
	}
}

// checkVolume returns an error if no pod can mount the volume of a field.
func (p preparer) checkVolume(field string, volume map[string]any) error {
	if p.image == "" {
		return fmt.Errorf("%s needs a pod that mounts the volume: start 'berth slurm-jobs', or 'berth run --slurm-jobs', with --results-image and the name of an image that contains tar", field)
	}
	return results.CheckVolume(field, volume, p.volumes)
}

// readScript reads a script on this host. A relative path begins in folder.
func readScript(folder, path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(folder, path)
	}
	text, err := readBounded(path)
	if errors.Is(err, fs.ErrPermission) {
		err = explainDenied(path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the script %s of spec.jobdata.jobscript: %w", path, err)
	}
	return text, nil
}

// explainDenied adds the owner of a file that may not be read, or of the folder that hides it, and
// the remedy to an error.
func explainDenied(path string, err error) error {
	mode, object := "r", "the file"
	info, statErr := os.Stat(path)
	for errors.Is(statErr, fs.ErrPermission) && path != "/" {
		path, mode, object = filepath.Dir(path), "x", "folder "+filepath.Dir(path)
		info, statErr = os.Stat(path)
	}
	if statErr != nil {
		return err
	}
	owner := fmt.Sprint("user ", info.Sys().(*syscall.Stat_t).Uid)
	if known, err := user.LookupId(strings.TrimPrefix(owner, "user ")); err == nil {
		owner = known.Username
	}
	return fmt.Errorf("%w: %s belongs to %s, who can run 'chmod a+%s %s'; or give the script itself, with scriptlocation: inline", err, object, owner, mode, path)
}

// readBounded reads a regular file of at most maxScript bytes.
func readBounded(path string) ([]byte, error) {
	file, err := joblog.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxScript+1))
	if err == nil && len(text) > maxScript {
		err = fmt.Errorf("it is larger than %d bytes", maxScript)
	}
	return text, err
}
