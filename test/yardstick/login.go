package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

const sleeper = `apiVersion: v1
kind: Pod
metadata: {name: sleeper}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: "busybox:1.37", command: [sh, -c, "echo up; exec sleep 1000000"]}
`

// throughTunnel is the number of commands that are measured through the open tunnel.
const throughTunnel = 10

// reachIn measures commands from the login host into a running job: the first,
// which opens the tunnel, the mean of others, and a shell in a pod until its
// first output.
func (b *bencher) reachIn() (_ map[string]float64, err error) {
	path, remove, err := manifest(sleeper)
	if err != nil {
		return nil, err
	}
	defer remove()
	job, err := b.step(2, "run", "--quiet", "-f", "-", "--image", b.image)
	if err != nil {
		return nil, err
	}
	if job.Stdin, err = os.Open(path); err != nil {
		return nil, err
	}
	out, err := job.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := job.Start(); err != nil {
		return nil, err
	}
	defer func() {
		cancel, wrong := b.asUser("scancel", "--me")
		if wrong == nil {
			wrong = cancel.Run()
		}
		_ = job.Wait() // its code is that of a job that was cancelled
		err = errors.Join(err, wrong)
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "up\n" {
		return nil, fmt.Errorf("wait for a pod: %q: %w", line, err)
	}
	ask, err := b.asUser("squeue", "--me", "--noheader", "--states=RUNNING", "--format=%A")
	if err != nil {
		return nil, err
	}
	answer, err := ask.Output()
	if err != nil {
		return nil, err
	}
	id := strings.TrimSpace(string(answer))
	first, err := b.kubectl(id, "get", "pods")
	if err != nil {
		return nil, err
	}
	// From here on kubectl has what it caches of a server.
	others := 0.0
	for range throughTunnel {
		took, err := b.kubectl(id, "get", "pods")
		if err != nil {
			return nil, err
		}
		others += took / throughTunnel
	}
	shell, err := b.kubectl(id, "exec", "-i", "sleeper", "--", "sh", "-c", "echo '$ '; sleep 0.1")
	return map[string]float64{
		"login: the first berth kubectl get pods, s":          first,
		"login: berth kubectl get pods through the tunnel, s": others,
		"login: berth kubectl exec to the first output, s":    shell,
	}, err
}

// kubectl returns the time, in seconds, until the first output of a command.
func (b *bencher) kubectl(job string, args ...string) (float64, error) {
	command, err := b.command(append([]string{"kubectl", job}, args...)...)
	if err != nil {
		return 0, err
	}
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := command.Start(); err != nil {
		return 0, err
	}
	lines := bufio.NewReader(out)
	_, err = lines.ReadString('\n')
	took := time.Since(start).Seconds()
	_, _ = lines.WriteTo(io.Discard) // a closed pipe would be an error of the command's
	return took, errors.Join(err, command.Wait())
}
