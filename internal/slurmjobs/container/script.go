// Package container makes the batch script of an object that names an image instead of a script,
// such as a WlmJob. The script calls 'berth run' with a manifest of a Job, whose pods run the
// image, one on each node of the Slurm job. So the cluster needs neither Singularity nor settings
// for containers in Slurm.
//
// Package kinds decodes such objects, and package script guards this batch script like any other.
package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth.dev/berth/internal/job/batch"
	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/script"
)

// Options holds what all containers have in common.
type Options struct {
	// Berth is the path of the program berth on compute nodes.
	Berth string
	// Roots lists the folders that may hold binds. The first is the working directory.
	Roots []string
}

// ClusterMemoryMB is the memory that a job asks for on each node in addition to that of the
// object, in MB: a cluster needs it (probe.HeadMemory).
const ClusterMemoryMB = 512

// localImage is the name that an image from a file has in the cluster of the job.
const localImage = "wlmjob"

// Script returns the batch script that runs a container on each of some nodes. Zero nodes stand
// for one. object is the namespace and the name of the object.
//
// Numbers are the only values of the object in #SBATCH lines. All other values are in the
// manifest, which is JSON in one line, or quoted for the shell.
func Script(object string, nodes int64, c kinds.Container, o Options) ([]byte, error) {
	args := []string{"run", "--quiet"}
	image := c.Reference
	if image == "" {
		path, err := o.find(c)
		if err != nil {
			return nil, err
		}
		image = localImage
		args = append(args, "--no-pull", "--image="+localImage+"="+path)
	}
	manifest, err := o.manifest(image, max(nodes, 1), c)
	if err != nil {
		return nil, err
	}
	return batch.Script{
		Name: strings.ReplaceAll(object, "/", "."), Options: sizes(c), Berth: o.Berth, Args: append(args, "--file=-"),
		Input: manifest, CommandLine: []string{"WlmJob", object},
	}.Text(), nil
}

// sizes returns the options of sbatch for the size of each node.
func sizes(c kinds.Container) []batch.Option {
	options := []batch.Option{option("ntasks-per-node", 1)}
	if c.CPUs > 0 {
		options = append(options, option("cpus-per-task", c.CPUs))
	}
	if c.MemoryMB > 0 {
		options = append(options, option("mem", c.MemoryMB+ClusterMemoryMB))
	}
	return options
}

func option(name string, value int64) batch.Option {
	text := strconv.FormatInt(value, 10)
	return batch.Option{Name: name, Value: text, Words: []string{"--" + name + "=" + text}}
}

// find returns the path of the file or the folder that holds an image. An error of the file
// system is wrapped, because some of them pass.
func (o Options) find(c kinds.Container) (string, error) {
	path := c.File
	if !filepath.IsAbs(path) {
		path = filepath.Join(o.Roots[0], path)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && c.Pull != "":
		return "", fmt.Errorf("spec.image %q: berth cannot pull it, and the file that stands for it is missing: %w: call 'apptainer pull %s' in %s, and create the object again",
			c.Image, err, batch.Quote(c.Pull), batch.Quote(o.Roots[0]))
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("spec.image %q: %w: give the path of a SIF file, an image archive or an unpacked image that all nodes see, or docker://NAME", c.Image, err)
	case err == nil && !info.IsDir() && !info.Mode().IsRegular():
		return "", fmt.Errorf("spec.image %q: %s is neither a file nor a folder", c.Image, path)
	case err == nil:
		var file *os.File
		if file, err = os.Open(path); err == nil {
			return path, file.Close()
		}
	}
	return "", fmt.Errorf("spec.image %q: %w", c.Image, err)
}

// manifest returns the Job for 'berth run'. It has no memory limit: the container may use what
// the Slurm job has.
func (o Options) manifest(image string, nodes int64, c kinds.Container) ([]byte, error) {
	type object = map[string]any
	var volumes, mounts []object
	mount := func(bind kinds.Bind, kind corev1.HostPathType) {
		name := fmt.Sprintf("bind-%d", len(volumes))
		volumes = append(volumes, object{"name": name, "hostPath": object{"path": bind.Source, "type": kind}})
		mounts = append(mounts, object{"name": name, "mountPath": bind.Target, "readOnly": bind.ReadOnly})
	}
	dir := filepath.Clean(o.Roots[0])
	own := dir != "/" // whether the working directory can be mounted
	for _, bind := range c.Binds {
		if err := script.Within(bind.Source, o.Roots); err != nil {
			return nil, fmt.Errorf("spec.options.binds: %w", err)
		}
		kind, err := hostPathType(bind.Source)
		if err != nil {
			return nil, err
		}
		own = own && bind.Target != dir
		mount(bind, kind)
	}
	if own {
		mount(kinds.Bind{Source: dir, Target: dir}, corev1.HostPathDirectory)
	}
	main := object{
		"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "workingDir": dir, "volumeMounts": mounts,
		"env": []object{{"name": "HOME", "value": dir}, {"name": "SLURM_NNODES", "value": strconv.FormatInt(nodes, 10)}, nodeID(nodes)},
	}
	// Only root of the container is the user on the host's file systems, whatever user the
	// image names.
	security := object{"runAsUser": 0, "runAsGroup": 0}
	if c.NoPrivileges {
		security["allowPrivilegeEscalation"], security["capabilities"] = false, object{"drop": []string{"ALL"}}
	}
	main["securityContext"] = security
	pod := object{
		"restartPolicy": "Never", "automountServiceAccountToken": false, "enableServiceLinks": false,
		"containers": []object{main}, "volumes": volumes,
	}
	if c.HostName != "" {
		pod["hostname"] = c.HostName
	}
	job := object{"backoffLimit": 0, "completions": nodes, "parallelism": nodes}
	labels := object{"app": localImage}
	if nodes > 1 {
		job["completionMode"] = "Indexed"
		pod["affinity"] = object{"podAntiAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": []object{
			{"topologyKey": "kubernetes.io/hostname", "labelSelector": object{"matchLabels": labels}},
		}}}
	}
	job["template"] = object{"metadata": object{"labels": labels}, "spec": pod}
	return json.Marshal(object{"apiVersion": "batch/v1", "kind": "Job", "metadata": object{"name": localImage}, "spec": job})
}

// hostPathType returns the type of a volume for the source of a bind. Without a type, a node that
// does not see the source would make an empty folder of this name.
func hostPathType(source string) (corev1.HostPathType, error) {
	info, err := os.Stat(source)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("spec.options.binds: %w: make the folder or the file, and create the object again", err)
	case err != nil:
		return "", fmt.Errorf("spec.options.binds: %w", err)
	case info.IsDir():
		return corev1.HostPathDirectory, nil
	case info.Mode().IsRegular():
		return corev1.HostPathFile, nil
	}
	return "", fmt.Errorf("spec.options.binds: %s is neither a file nor a folder", source)
}

// nodeID returns the variable with the number of the container's node, from 0.
func nodeID(nodes int64) map[string]any {
	const name = "SLURM_NODEID"
	if nodes == 1 {
		return map[string]any{"name": name, "value": "0"}
	}
	return map[string]any{"name": name, "valueFrom": map[string]any{"fieldRef": map[string]any{
		"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
	}}}
}
