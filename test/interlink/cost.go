package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth.dev/berth/test/interlink/virtualnode"
)

// rounds is the number of times that measure requests the statuses of all pods.
const rounds = 5

// measure sends count pods, requests the statuses of all of them in several rounds, and deletes
// them. It prints the duration of each step, and the processor time and the memory of the plugin,
// which is the process pid. The virtual node requests statuses one after the other (statusLoop in
// pkg/virtualkubelet/virtualkubelet.go). measure also requests all of them at once, which the API
// permits.
func (p *plugin) measure(ctx context.Context, count, pid int) error {
	t := &trial{plugin: p, objects: virtualnode.Objects{ConfigMaps: map[string]corev1.ConfigMap{
		"kube-root-ca.crt": {Data: map[string]string{"ca.crt": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}},
	}}}
	pods := make([]*corev1.Pod, count)
	for i := range pods {
		pods[i] = &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "python:alpine", Command: []string{"sleep", "1000"},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
		}}}}
		pods[i].Namespace, pods[i].Name = "interlink", fmt.Sprintf("cost-%d", i)
		t.objects.AddToken(pods[i])
	}
	each := func(name string, act func(*corev1.Pod) error) error {
		return measured(name, pid, func() error { return inParallel(pods, act) })
	}
	if err := each("create", func(pod *corev1.Pod) error { return p.sendPod(ctx, t.objects, pod) }); err != nil {
		return err
	}
	for _, size := range []int{1, count} {
		for range rounds {
			if err := measured(fmt.Sprintf("%d requests for %d statuses each", count/size, size), pid, func() error { return p.updateAll(ctx, pods, size) }); err != nil {
				return err
			}
		}
	}
	running := 0
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodRunning {
			running++
		}
	}
	fmt.Printf("%d of %d pods run\n", running, count)
	return each("delete", func(pod *corev1.Pod) error {
		var reply string
		return p.call(ctx, "POST", "/delete", pod, &reply)
	})
}

// updateAll updates the statuses of pods, with requests for size pods each.
func (p *plugin) updateAll(ctx context.Context, pods []*corev1.Pod, size int) error {
	for part := range slices.Chunk(pods, size) {
		var replies []virtualnode.Status
		if err := p.call(ctx, "GET", "/status", part, &replies); err != nil {
			return err
		}
		if len(replies) != len(part) {
			return fmt.Errorf("there are %d statuses of %d pods", len(replies), len(part))
		}
		for i, reply := range replies {
			if err := virtualnode.Update(part[i], reply); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendPod sends a pod, and stores its job ID as the virtual node does.
func (p *plugin) sendPod(ctx context.Context, objects virtualnode.Objects, pod *corev1.Pod) error {
	t := &trial{plugin: p, objects: objects}
	return t.create(ctx, pod)
}

// inParallel calls act for all pods, for parallel of them at the same time, and returns the
// first error.
func inParallel(pods []*corev1.Pod, act func(*corev1.Pod) error) error {
	problems := make([]error, len(pods))
	var running sync.WaitGroup
	free := make(chan struct{}, parallel)
	for i, pod := range pods {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			problems[i] = act(pod)
		})
	}
	running.Wait()
	for _, problem := range problems {
		if problem != nil {
			return problem
		}
	}
	return nil
}

// measured runs a step and prints its duration, the processor time of the process pid during
// the step, and the largest memory of that process so far.
func measured(name string, pid int, step func() error) error {
	before, err := processorTime(pid)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := step(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	took := time.Since(began)
	after, err := processorTime(pid)
	if err != nil {
		return err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	_, peak, _ := bytes.Cut(status, []byte("VmHWM:"))
	peak, _, _ = bytes.Cut(peak, []byte("\n"))
	fmt.Printf("%s: %.3f s, processor %.2f s, peak memory %s\n", name, took.Seconds(), (after - before).Seconds(), bytes.TrimSpace(peak))
	return nil
}

// processorTime returns the processor time that a process has used. Linux counts it in
// hundredths of a second (proc_pid_stat(5), fields utime and stime).
func processorTime(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	var sum time.Duration
	for _, field := range fields[11:13] {
		ticks, err := strconv.Atoi(string(field))
		if err != nil {
			return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
		}
		sum += time.Duration(ticks) * 10 * time.Millisecond
	}
	return sum, nil
}
