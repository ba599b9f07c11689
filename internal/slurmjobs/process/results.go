package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/results"
	"berth.dev/berth/internal/slurmjobs/script"
)

// Results configures how results of jobs are collected.
type Results struct {
	// Image is the image of the pods that mount the volumes. It contains tar. If it is empty,
	// objects with inputs or results are rejected.
	Image string
	// Roots lists the folders that may hold results, besides the working directory of a job.
	Roots []string
	// Volumes lists the types of volumes that may be mounted, such as persistentVolumeClaim.
	Volumes []string
}

// volumeTypes holds the types of volumes that can take results.
var volumeTypes = sets.New("persistentVolumeClaim", "hostPath", "nfs", "csi", "cephfs", "flexVolume", "iscsi", "fc")

// VolumeTypes returns the types of volumes that can take results.
func VolumeTypes() []string { return sets.List(volumeTypes) }

// Check returns an error if the options are invalid.
func (r Results) Check() error {
	for _, name := range r.Volumes {
		if !volumeTypes.Has(name) {
			return fmt.Errorf("--results-volume %s: no type of volume that takes results: there are %s", name, strings.Join(VolumeTypes(), ", "))
		}
	}
	return nil
}

// collector collects results of objects.
type collector struct {
	preparer
	results.Collector
	roots []string
	// find returns the number of the job of an object. It is the controller's Slurm.Find.
	find func(ctx context.Context, uid string) (id string, found bool, err error)
	// turn is the time after which the upload of an object pauses, and other objects come first.
	turn time.Duration
	log  *slog.Logger
}

// uploadTurn is the default of collector.turn.
const uploadTurn = 10 * time.Minute

// errNoResults is the error for an object that was edited after its job had ended.
var errNoResults = results.NewFinal(errors.New("the object asks for no results any more; copy the files of the job by hand"))

// collect collects the results of an object. It is the controller's Collect.
func (c collector) collect(ctx context.Context, object *unstructured.Unstructured) (string, error) {
	request, err := kinds.Read(object)
	if err != nil {
		return "", err
	}
	if request.Upload != nil {
		return c.upload(ctx, object, request)
	}
	if request.Results == nil {
		return "", errNoResults
	}
	source, volume, err := c.source(request)
	if err != nil {
		return "", err
	}
	summary, err := c.Collect(ctx, object, volume, source)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("%s is in volume %v: %d files and folders, %d bytes", filepath.Base(source.Path), volume["name"], summary.Files, summary.Bytes)
	if summary.LeftOut > 0 {
		text += fmt.Sprintf("; %d links, special files or files of other users were left out", summary.LeftOut)
	}
	return text, nil
}

// source returns the results of an object and the volume for them. Of the job it needs only the
// working directory, because the job's image or binds may be gone.
func (c collector) source(request kinds.Request) (results.Source, map[string]any, error) {
	if err := c.checkVolume("spec.results", request.Results.Volume); err != nil {
		return results.Source{}, nil, err
	}
	dir, err := script.Dir(script.Description{Script: request.Script, Roots: c.preparer.roots, Dir: request.Dir})
	if err != nil {
		return results.Source{}, nil, err
	}
	source := results.Source{Path: request.Results.From, Roots: append([]string{dir}, c.roots...), Limits: results.DefaultLimits()}
	if !filepath.IsAbs(source.Path) {
		source.Path = filepath.Join(dir, source.Path)
	}
	return source, request.Results.Volume, nil
}

// fetch copies the inputs of an object. It is the controller's Fetch.
func (c collector) fetch(ctx context.Context, object *unstructured.Unstructured, request kinds.Request, job queue.Job) (string, error) {
	destination, err := c.destination(request, job)
	if err != nil {
		return "", err
	}
	summary, err := c.Fetch(ctx, object, request.Inputs.Volume, destination)
	if err != nil {
		return "", err
	}
	name := request.Inputs.Volume["name"]
	text := fmt.Sprintf("volume %v is in %s/%v: %d files and folders, %d bytes", name, filepath.Join(destination.Root, destination.Path), name, summary.Files, summary.Bytes)
	if summary.LeftOut > 0 {
		text += fmt.Sprintf("; %d links and special files were left out", summary.LeftOut)
	}
	return text, nil
}

// destination returns the folder for the inputs of an object.
func (p preparer) destination(request kinds.Request, job queue.Job) (results.Destination, error) {
	to := request.Inputs.To
	if !filepath.IsAbs(to) {
		to = filepath.Join(job.Dir, to)
	}
	root, path, err := script.Below(to, p.roots)
	if err != nil {
		return results.Destination{}, fmt.Errorf("spec.prepare.to: %w", err)
	}
	return results.Destination{Root: root, Path: path, Limits: results.DefaultLimits()}, nil
}
