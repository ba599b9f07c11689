package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// settle is the time that a cluster gets to finish its start before it counts as idle.
const settle = 15 * time.Second

// idleCost measures processor time and memory of all roles of an idle cluster,
// empty and with 20 idle pods.
func (b *bencher) idleCost() (map[string]float64, error) {
	values := map[string]float64{}
	empty, err := b.cost("true")
	if err != nil {
		return nil, err
	}
	values["idle CPU, % of a core"] = empty.cpu
	values["idle PSS of all roles, MB"] = empty.pss / 1e6
	for name, pss := range empty.byName {
		values["idle PSS of "+name+", MB"] = pss / 1e6
	}
	many, err := b.cost(`kubectl create deployment many --image=busybox:1.37 --replicas=20 -- sleep 1000000 >&2 && kubectl rollout status deployment/many >&2`)
	if err != nil {
		return nil, err
	}
	values["idle CPU with 20 pods, % of a core"] = many.cpu
	values["PSS growth per idle pod, MB"] = (many.pss - empty.pss) / 20 / 1e6
	return values, nil
}

type cost struct {
	cpu    float64 // percent of a core
	pss    float64 // bytes
	byName map[string]float64
}

// cost starts a cluster, runs script in it, waits, and measures for a while.
func (b *bencher) cost(script string) (cost, error) {
	command, err := b.command("run", "--quiet", "--image", b.image, "--", "sh", "-c", script+"; echo ready; read line")
	if err != nil {
		return cost{}, err
	}
	stdin, err := command.StdinPipe()
	if err != nil {
		return cost{}, err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return cost{}, err
	}
	if err := command.Start(); err != nil {
		return cost{}, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "ready\n" {
		return cost{}, fmt.Errorf("wait for the cluster (%q): %w", line, err)
	}
	time.Sleep(settle)
	before := ticks(descendants(command.Process.Pid))
	start := time.Now()
	time.Sleep(b.idle)
	tree := descendants(command.Process.Pid)
	c := cost{byName: map[string]float64{}}
	// A second has 100 ticks, and the result is in percent of a core.
	c.cpu = float64(ticks(tree)-before) / time.Since(start).Seconds()
	for _, pid := range tree {
		pss := proportional(pid)
		c.pss += pss
		c.byName[name(pid)] += pss
	}
	if _, err := stdin.Write([]byte("\n")); err != nil {
		return cost{}, err
	}
	return c, command.Wait()
}

// descendants returns a process and all processes that it started, directly or not.
func descendants(root int) []int {
	children := map[int][]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	for _, path := range stats {
		fields := statFields(path)
		if len(fields) < 2 {
			continue
		}
		parent, err1 := strconv.Atoi(fields[1])
		pid, err2 := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err1 == nil && err2 == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	all := []int{root}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// statFields returns the fields of /proc/PID/stat after the name: the state,
// the parent, and so on.
func statFields(path string) []string {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
}

// ticks sums the processor time of processes, reaped children included.
func ticks(pids []int) int {
	total := 0
	for _, pid := range pids {
		fields := statFields(fmt.Sprintf("/proc/%d/stat", pid))
		for i := 11; i <= 14 && i < len(fields); i++ {
			n, err := strconv.Atoi(fields[i])
			if err == nil {
				total += n
			}
		}
	}
	return total
}

func proportional(pid int) float64 {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Pss:" {
			kilobytes, err := strconv.ParseFloat(fields[1], 64)
			if err == nil {
				return kilobytes * 1024
			}
		}
	}
	return 0
}

// name returns the program of a process and, for berth's processes, the role.
func name(pid int) string {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "?"
	}
	args := strings.Split(string(content), "\x00")
	base := filepath.Base(args[0])
	if (base == "berth" || base == "berth-kube") && len(args) > 1 {
		return base + " " + args[1]
	}
	return base
}
