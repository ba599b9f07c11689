package sequence

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/bench/internal/record"
)

// podTimeout returns the time that pods of a running cluster may take to start, in the
// format of kubectl's --timeout. It is at most a third of the time left, so that later
// checks can run, too.
func podTimeout(ctx context.Context) string {
	limit := 2 * time.Minute
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/3)
	}
	return max(limit.Round(time.Second), time.Second).String() // kubectl takes 0 as no limit
}

// removeLimit limits the time to remove all objects. It is shorter than the time that this
// program has to end after SIGTERM (endLimit in package system).
const removeLimit = 10 * time.Second

// requirements checks the functional requirements of the KSI paper, RQ1 to RQ3.
// Each part does what a user would do, and reports whether it worked. A part that
// fails is a result, not a failure of the trial.
func requirements(ctx context.Context, s Spec) (Result, error) {
	mark := "berth-bench-" + strings.ToLower(rand.Text()[:10])
	text, err := everywhere(s.Image, mark, s.Nodes)
	if err != nil {
		return Result{}, err
	}
	// In any case, leave nothing in a cluster that does not belong to the bench.
	remove := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeLimit)
		defer cancel()
		_, err := s.kubectl(ctx, "", "delete", "deployment,service,job", "-l", "app="+mark, "--ignore-not-found", "--wait=false")
		return err
	}
	var r Result
	check := func(name string, does func() (string, error)) {
		detail, err := does()
		v := record.Value{Name: name, Unit: record.Check, Better: "higher", Value: 1, Detail: detail}
		if err != nil {
			v.Value, v.Detail = 0, err.Error()
		}
		r.Values = append(r.Values, v)
	}
	check("RQ1 kubectl apply and rollout status: a Deployment and a Service", func() (string, error) {
		if _, err := s.kubectl(ctx, text, "apply", "-f", "-"); err != nil {
			return "", err
		}
		return "", s.ready(ctx, mark)
	})
	check("RQ1 kubectl exec: a command in a pod", func() (string, error) { return s.exec(ctx, mark) })
	check("RQ1 kubectl wait and logs: a Job that runs to its end", func() (string, error) { return s.job(ctx, mark) })
	check("RQ1 a Service with an address of its own answers by its name", func() (string, error) { return s.service(ctx, mark) })
	check("RQ2 the pod's processes are the user's, in the Slurm job", func() (string, error) { return inJob(mark) })
	if !s.Given {
		check("RQ2 nothing was started as root", func() (string, error) { return "as uid " + fmt.Sprint(os.Getuid()), unprivileged() })
	}
	check(fmt.Sprintf("RQ3 pods run on %d machines at the same time", s.Nodes), func() (string, error) { return s.spread(ctx, mark) })
	return r, errors.Join(context.Cause(ctx), remove())
}

type object = map[string]any

// everywhere returns a Deployment with a server pod on each node, and its Service.
func everywhere(image, mark string, nodes int) (string, error) {
	labels := object{"app": mark}
	// The folder's name identifies its processes.
	command := fmt.Sprintf("mkdir /tmp/%s; echo it answers >/tmp/%[1]s/index.html; exec busybox httpd -f -p 8080 -h /tmp/%[1]s", mark)
	return Encode(
		object{
			"apiVersion": "v1", "kind": "Service", "metadata": object{"name": mark, "labels": labels},
			"spec": object{"selector": labels, "ports": []object{{"port": 8080}}},
		},
		object{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": mark, "labels": labels},
			"spec": object{
				"replicas": nodes, "selector": object{"matchLabels": labels},
				"template": object{"metadata": object{"labels": labels}, "spec": object{
					"terminationGracePeriodSeconds": 0,
					"topologySpreadConstraints": []object{{
						"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": object{"matchLabels": labels},
					}},
					"containers": []object{{
						"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": []string{"sh", "-c", command},
						"readinessProbe": object{"tcpSocket": object{"port": 8080}, "periodSeconds": 1},
					}},
				}},
			},
		})
}

// Encode returns objects as one manifest.
func Encode(objects ...object) (string, error) {
	var text strings.Builder
	for _, one := range objects {
		encoded, err := json.Marshal(one)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "---\n%s\n", encoded)
	}
	return text.String(), nil
}

func (s Spec) ready(ctx context.Context, mark string) error {
	_, err := s.kubectl(ctx, "", "rollout", "status", "deployment/"+mark, "--timeout="+podTimeout(ctx))
	return err
}

func (s Spec) exec(ctx context.Context, mark string) (string, error) {
	out, err := s.kubectl(ctx, "", "exec", "deployment/"+mark, "--", "cat", "/tmp/"+mark+"/index.html")
	return want(strings.TrimSpace(out), err, "it answers")
}

// want returns err, or an error if a program's output is not the wanted one. The text is
// always empty: such a check has no detail.
func want(got string, err error, wanted string) (string, error) {
	if err == nil && got != wanted {
		err = fmt.Errorf("%w: %q instead of %q", errNo, got, wanted)
	}
	return "", err
}

// job runs a Job that connects to the Service, and keeps it for its log.
func (s Spec) job(ctx context.Context, mark string) (string, error) {
	text, err := Encode(object{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": object{"name": mark, "labels": object{"app": mark}},
		"spec": object{"backoffLimit": 0, "template": object{"spec": object{
			"restartPolicy": "Never",
			"containers": []object{{
				"name": "main", "image": s.Image, "imagePullPolicy": "IfNotPresent",
				"command": []string{"sh", "-c", "echo a Job; busybox wget -q -T 20 -O - http://" + mark + ":8080/ || echo no answer"},
			}},
		}}},
	})
	if err != nil {
		return "", err
	}
	if _, err := s.kubectl(ctx, text, "apply", "-f", "-"); err != nil {
		return "", err
	}
	if _, err := s.kubectl(ctx, "", "wait", "--for=condition=complete", "--timeout="+podTimeout(ctx), "job/"+mark); err != nil {
		return "", err
	}
	out, err := s.kubectl(ctx, "", "logs", "job/"+mark)
	first, _, _ := strings.Cut(out, "\n")
	return want(first, err, "a Job")
}

func (s Spec) service(ctx context.Context, mark string) (string, error) {
	address, err := s.kubectl(ctx, "", "get", "service", mark, "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return "", err
	}
	if address == "" || address == "None" {
		return "", fmt.Errorf("%w: the Service has no address", errNo)
	}
	out, err := s.kubectl(ctx, "", "logs", "job/"+mark)
	_, rest, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return want(rest, err, "it answers")
}

// spread checks that pods run on all nodes at the same time, and that each answers. It lists
// the pods only once, so that all of them run at that moment.
func (s Spec) spread(ctx context.Context, mark string) (string, error) {
	out, err := s.kubectl(ctx, "", "get", "pods", "-l", "app="+mark, "--field-selector", "status.phase=Running",
		"-o", `jsonpath={range .items[*]}{.spec.nodeName}{" "}{.metadata.name}{"\n"}{end}`)
	if err != nil {
		return "", err
	}
	var nodes []string
	for line := range strings.Lines(out) {
		node, pod, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains(nodes, node) {
			continue
		}
		if _, err := s.kubectl(ctx, "", "exec", pod, "--", "true"); err != nil {
			return "", err
		}
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	if len(nodes) != s.Nodes {
		return "", fmt.Errorf("%w: they run on %d: %s", errNo, len(nodes), strings.Join(nodes, ", "))
	}
	return strings.Join(nodes, ", "), nil
}

// process describes a process of this machine.
type process struct {
	uid, parent int
	cgroup      string
	// capable reports whether the process has effective capabilities.
	capable bool
}

// inJob checks that a pod's processes run on this machine, as the user, and in this
// program's job. It returns how they belong to the job: by their cgroup, or, if Slurm
// makes none, as descendants of a process with the job's number. It returns an error that
// wraps errNo if a process does not belong to the job, or if there is none.
func inJob(mark string) (string, error) {
	job := os.Getenv("SLURM_JOB_ID")
	if job == "" {
		return "", fmt.Errorf("%w: this is no Slurm job", errNo)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return "", err
	}
	found := 0
	how := ""
	for _, path := range commands {
		text, err := os.ReadFile(path)
		words := strings.Split(string(text), "\x00")
		// Only processes of the pod, not a shell whose arguments name it, such as kubectl's.
		if err != nil || !slices.Contains(words, "httpd") || !slices.Contains(words, "/tmp/"+mark) {
			continue
		}
		dir := filepath.Dir(path)
		p, err := look(dir)
		if err != nil {
			continue // the process has ended
		}
		if p.uid != os.Getuid() {
			return "", fmt.Errorf("%w: %s belongs to user %d", errNo, dir, p.uid)
		}
		if how = ofJob(p, job); how == "" {
			return "", fmt.Errorf("%w: %s is in no part of job %s", errNo, dir, job)
		}
		found++
	}
	if found == 0 {
		return "", fmt.Errorf("%w: none of its processes is on this machine", errNo)
	}
	return how, nil
}

// ofJob returns how a process belongs to a job, or "" if it does not.
func ofJob(p process, job string) string {
	if strings.Contains(p.cgroup, "/job_"+job+"/") {
		return "by their cgroup"
	}
	for p.parent > 1 {
		dir := fmt.Sprintf("/proc/%d", p.parent)
		if environ, err := os.ReadFile(dir + "/environ"); err == nil && slices.Contains(strings.Split(string(environ), "\x00"), "SLURM_JOB_ID="+job) {
			return "as descendants of the job's step"
		}
		var err error
		if p, err = look(dir); err != nil {
			return ""
		}
	}
	return ""
}

// look describes the process of a folder in /proc.
func look(dir string) (p process, err error) {
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return p, err
	}
	cgroup, err := os.ReadFile(dir + "/cgroup")
	p = readStatus(string(status))
	p.cgroup = string(cgroup)
	return p, err
}

// readStatus parses the text of /proc/PID/status.
func readStatus(text string) (p process) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); name {
		case "PPid":
			_, _ = fmt.Sscan(value, &p.parent) // stays 0 if it is not a number
		case "Uid":
			_, _ = fmt.Sscan(value, &p.uid)
		case "CapEff":
			p.capable = strings.Trim(value, "0") != ""
		}
	}
	return p
}

// unprivileged returns an error if this process is root or has capabilities. berth, which
// started the cluster, started this process, too. The process that started a given cluster
// is unknown.
func unprivileged() error {
	p, err := look("/proc/self")
	switch {
	case err != nil:
		return fmt.Errorf("read the status of this process: %w", err)
	case p.uid == 0:
		return errors.New("this is root")
	case p.capable:
		return errors.New("this has capabilities")
	}
	return nil
}
