package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cases holds the measurements by name. They run on one host and, from the login host
// of a bed, through Slurm. Each returns values by name.
var cases = map[string]func(*bencher) (map[string]float64, error){
	"version":  (*bencher).versionTime,
	"usable":   (*bencher).usable,
	"pods-50":  (*bencher).pods50,
	"state":    (*bencher).saveAndRestore,
	"idle":     (*bencher).idleCost,
	"nodes-3":  (*bencher).threeNodes,
	"ha":       (*bencher).available,
	"reach-in": (*bencher).reachIn,
	"worker":   (*bencher).workerMemory,
	"services": (*bencher).services,
	"objects":  (*bencher).slurmObjects,
	"elastic":  (*bencher).elasticPod,
	"pilots":   (*bencher).elasticIdle,
}

type bencher struct {
	berth, image, user string
	idle               time.Duration
}

const pods = `apiVersion: apps/v1
kind: Deployment
metadata: {name: many}
spec:
  replicas: 50
  selector: {matchLabels: {app: many}}
  template:
    metadata: {labels: {app: many}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: sleep, image: "busybox:1.37", command: ["sleep", "1000000"]}
`

// command makes a berth that runs as the unprivileged user.
func (b *bencher) command(args ...string) (*exec.Cmd, error) {
	if args[0] == "run" {
		args = slices.Insert(slices.Clone(args), 1, "--here") // a host of a bed belongs to a Slurm cluster
	}
	return b.asUser(b.berth, args...)
}

// step makes a berth that runs as a job step over a number of nodes. Without -c
// Slurm would give each step only the first core, and all hosts of a bed would
// share it.
func (b *bencher) step(nodes int, args ...string) (*exec.Cmd, error) {
	return b.asUser("srun", append([]string{"-N" + strconv.Itoa(nodes), "-c" + strconv.Itoa(runtime.NumCPU()), "--mem=1000", b.berth}, args...)...)
}

func (b *bencher) asUser(program string, args ...string) (*exec.Cmd, error) {
	if b.user == "" {
		return exec.Command(program, args...), nil
	}
	account, err := user.Lookup(b.user)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	command := exec.Command(program, args...)
	command.Dir = "/"
	command.Env = []string{"HOME=" + account.HomeDir, "USER=" + b.user, "PATH=/usr/local/bin:/usr/bin:/bin"}
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	return command, nil
}

func (b *bencher) version() (string, error) {
	command, err := b.command("version")
	if err != nil {
		return "", err
	}
	out, err := command.Output()
	return strings.TrimSpace(string(out)), err
}

func (b *bencher) versionTime() (map[string]float64, error) {
	start := time.Now()
	_, err := b.version()
	return map[string]float64{"berth version, s": time.Since(start).Seconds()}, err
}

// manifest writes text to a file that the user can read.
func manifest(text string) (path string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	path = filepath.Join(dir, "manifest.yaml")
	if err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		remove()
	}
	return path, remove, err
}

// pods50 measures from the application of a Deployment to 50 running pods,
// and the end with all of them.
func (b *bencher) pods50() (map[string]float64, error) {
	path, remove, err := manifest(pods)
	if err != nil {
		return nil, err
	}
	defer remove()
	script := `date +%s.%N; kubectl apply -f "$0" >&2; kubectl rollout status deployment/many --timeout=120s >&2; date +%s.%N`
	command, err := b.command("run", "--quiet", "--image", b.image, "--", "sh", "-c", script, path)
	if err != nil {
		return nil, err
	}
	out, err := command.Output()
	end := float64(time.Now().UnixNano()) / 1e9
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(out))
	if len(fields) != 2 {
		return nil, fmt.Errorf("unexpected output %q", out)
	}
	applied, err1 := strconv.ParseFloat(fields[0], 64)
	running, err2 := strconv.ParseFloat(fields[1], 64)
	return map[string]float64{
		"50 pods running, s":  running - applied,
		"end with 50 pods, s": end - running,
	}, errors.Join(err1, err2)
}
