package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const spread = `apiVersion: batch/v1
kind: Job
metadata: {name: spread}
spec:
  parallelism: 3
  completions: 3
  backoffLimit: 0
  template:
    metadata: {labels: {app: spread}}
    spec:
      restartPolicy: Never
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: spread}}
      containers:
      - name: main
        image: busybox:1.37
        command: [sh, -c, "echo here is $NODE"]
        env:
        - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
`

// threeNodes measures from the start of srun to the first output of a pod on
// the last of three nodes.
func (b *bencher) threeNodes() (map[string]float64, error) {
	path, remove, err := manifest(spread)
	if err != nil {
		return nil, err
	}
	defer remove()
	command, err := b.step(3, "run", "--quiet", "-f", "-", "--image", b.image)
	if err != nil {
		return nil, err
	}
	if command.Stdin, err = os.Open(path); err != nil {
		return nil, err
	}
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := command.Start(); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var last time.Duration
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if _, node, ok := strings.Cut(lines.Text(), "here is "); ok && !seen[node] {
			seen[node] = true
			last = time.Since(start)
		}
	}
	if err := command.Wait(); err != nil {
		return nil, err
	}
	if len(seen) != 3 {
		return nil, fmt.Errorf("pods ran on %d nodes, want 3", len(seen))
	}
	return map[string]float64{
		"3 nodes: srun to the last node's first output, s": last.Seconds(),
		"3 nodes: that output to the exit, s":              (time.Since(start) - last).Seconds(),
	}, nil
}

// available measures the time until all of three nodes take pods, with one
// control plane and with three.
func (b *bencher) available() (map[string]float64, error) {
	one, err := b.bringUp(3)
	if err != nil {
		return nil, err
	}
	three, err := b.bringUp(3, "--ha")
	return map[string]float64{
		"3 nodes, one control plane: srun to a usable cluster, s":    one,
		"3 nodes, three control planes: srun to a usable cluster, s": three,
	}, err
}

// bringUp returns the time, in seconds, from the start of srun until a cluster
// of n nodes takes pods.
func (b *bencher) bringUp(n int, flags ...string) (float64, error) {
	args := append([]string{"run", "--quiet", "--node-wait", "5m"}, flags...)
	command, err := b.step(n, append(args, "--", "echo", "up")...)
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
	_, err = bufio.NewReader(out).ReadString('\n')
	took := time.Since(start).Seconds()
	return took, errors.Join(err, command.Wait())
}

// printTicks prints the processor time of all processes of this user, in
// hundredths of a second.
func printTicks() error {
	pids, err := ownProcesses()
	if err != nil {
		return err
	}
	fmt.Println(ticks(pids))
	return nil
}

// workerMemory measures a node without a control plane and without pods.
func (b *bencher) workerMemory() (map[string]float64, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command, err := b.step(3, "run", "--quiet", "--", "sh", "-c",
		fmt.Sprintf(`sleep %d; exec srun --overlap -N1 -n1 -w "$(scontrol show hostnames "$SLURM_STEP_NODELIST" | sed -n 2p)" --mem=0 "$0" -memory`, int(settle.Seconds())), self)
	if err != nil {
		return nil, err
	}
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, err
	}
	bytes, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	return map[string]float64{"memory of a worker without pods, MB": bytes / 1e6}, err
}

// printMemory prints the memory that the processes of this user use on this host, in bytes.
func printMemory() error {
	pids, err := ownProcesses()
	if err != nil {
		return err
	}
	fmt.Println(int64(memoryOf(pids)))
	return nil
}

// memoryOf returns the memory that processes use, in bytes. File pages count once and whole: hosts
// of a bed share them, hosts of a site do not.
func memoryOf(pids []int) float64 {
	type mapping struct{ inode, offset string }
	files := map[mapping]float64{}
	total := 0.0
	for _, pid := range pids {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
		if err != nil {
			continue // it has ended
		}
		var at mapping
		for line := range strings.Lines(string(content)) {
			fields := strings.Fields(line)
			if len(fields) >= 5 && strings.Contains(fields[0], "-") {
				at = mapping{inode: fields[4], offset: fields[2]}
				continue
			}
			if len(fields) < 2 {
				continue
			}
			kilobytes, err := strconv.ParseFloat(fields[1], 64)
			switch {
			case err != nil:
			case fields[0] == "Pss:" && at.inode == "0":
				total += kilobytes * 1024
			case fields[0] == "Rss:" && at.inode != "0":
				files[at] = max(files[at], kilobytes*1024)
			}
		}
	}
	for _, resident := range files {
		total += resident
	}
	return total
}

// ownProcesses returns the processes of this user on this host, except this one.
func ownProcesses() ([]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range dirs {
		status, err := os.ReadFile(dir + "/status")
		pid, err2 := strconv.Atoi(filepath.Base(dir))
		if errors.Join(err, err2) != nil || pid == os.Getpid() {
			continue
		}
		for line := range strings.Lines(string(status)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Uid:" && fields[1] == strconv.Itoa(os.Getuid()) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// servicesScript makes 100 Services with 10 endpoints each, and then ten more,
// one by one. A program in a pod on every node asks for all of them from before
// they are there; see reach. It prints, for each time, when the making began,
// when it had ended, when every node had reached all, and the processor time of
// the head meanwhile.
const servicesScript = `set -eu
self=$0
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
kubectl create deployment back --image=busybox:1.37 --replicas=10 -- httpd -f -p 80 >&2
kubectl apply -f - >&2 <<YAML
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ask}
spec:
  selector: {matchLabels: {app: ask}}
  template:
    metadata: {labels: {app: ask}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: main, image: "busybox:1.37", command: [sleep, "100000"]}
YAML
kubectl rollout status deployment/back >&2
kubectl rollout status daemonset/ask >&2
asking=$(kubectl get pods -l app=ask -o jsonpath='{.items[*].metadata.name}')
for pod in $asking; do
	kubectl exec -i "$pod" -- sh -c 'cat >/tmp/reach && chmod +x /tmp/reach' <"$self"
done
# The low addresses are kept for users who choose one.
range=$(kubectl get service kubernetes -o jsonpath='{.spec.clusterIP}')
measure() { # FROM TO
	rm -f "$scratch"/*
	askers=
	for pod in $asking; do
		seq -f "${range%.*}.%.0f:80" "$1" "$2" | kubectl exec -i "$pod" -- /tmp/reach -reach >"$scratch/$pod" &
		askers="$askers $!"
	done
	until [ "$(cat "$scratch"/* | wc -l)" = "$(wc -w <<<"$asking")" ]; do sleep 0.05; done
	for i in $(seq "$1" "$2"); do
		printf -- '---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d}\nspec: {clusterIP: %s.%d, selector: {app: back}, ports: [{port: 80}]}\n' "$i" "${range%.*}" "$i"
	done >"$scratch/services"
	before=$("$self" -ticks) began=$(date +%s.%N)
	kubectl create -f "$scratch/services" >&2
	made=$(date +%s.%N)
	wait $askers
	reached=$(date +%s.%N)
	echo "$began $made $reached $(($("$self" -ticks) - before))"
}
measure 20 119
for i in $(seq 120 129); do measure "$i" "$i"; done
`

// services measures how soon Services are reachable from every node.
func (b *bencher) services() (map[string]float64, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command, err := b.step(3, "run", "--quiet", "--image", b.image, "--", "bash", "-c", servicesScript, self)
	if err != nil {
		return nil, err
	}
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, err
	}
	values := map[string]float64{}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i, line := range lines {
		var began, made, reached, ticks float64
		if _, err := fmt.Sscan(line, &began, &made, &reached, &ticks); err != nil {
			return nil, fmt.Errorf("read the times of the Services (%q): %w", line, err)
		}
		if i == 0 {
			values["100 Services of 10 endpoints: made, s"] = made - began
			values["100 Services of 10 endpoints: reached from every node, s"] = reached - began
			values["100 Services of 10 endpoints: CPU of the head, s"] = ticks / 100
			continue
		}
		further := float64(len(lines) - 1)
		values["one more Service: made, s"] += (made - began) / further
		values["one more Service: reached from every node, s"] += (reached - began) / further
		values["one more Service: CPU of the head, s"] += ticks / 100 / further
	}
	return values, nil
}
