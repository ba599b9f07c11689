package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pod is one sandbox. Host networking unless asked otherwise: these tests are
// about processes, and the bridge needs a route that they do not set up.
type pod struct {
	n      *node
	name   string
	id     string
	config *cri.PodSandboxConfig
	// user is whom its containers run as.
	user int64
	// command, if set, replaces the image's command.
	command []string
}

type podOption func(*cri.PodSandboxConfig)

func withNetwork(c *cri.PodSandboxConfig) {
	c.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_POD
	c.Hostname = c.Metadata.Name
}

func withPIDs(mode cri.NamespaceMode) podOption {
	return func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.Pid = mode }
}

// runPod starts a sandbox and removes it at the end of the test.
func (n *node) runPod(name string, options ...podOption) *pod {
	n.t.Helper()
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name + "-uid"},
		LogDirectory: filepath.Join(n.scratch, "logs", name),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods/" + name,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER},
			},
		},
	}
	for _, o := range options {
		o(config)
	}
	begin := time.Now()
	answer, err := n.runtime.RunPodSandbox(testContext(n.t), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		n.t.Fatalf("run pod %s: %v", name, err)
	}
	n.t.Logf("pod %s: RunPodSandbox %s", name, time.Since(begin).Round(time.Millisecond))
	p := &pod{n: n, name: name, id: answer.PodSandboxId, config: config, user: 1000}
	n.t.Cleanup(func() { p.remove() })
	return p
}

func (p *pod) remove() {
	ctx := endContext()
	begin := time.Now()
	if _, err := p.n.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		p.n.t.Errorf("stop pod %s: %v", p.name, err)
	}
	if _, err := p.n.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		p.n.t.Errorf("remove pod %s: %v", p.name, err)
	}
	p.n.t.Logf("pod %s: stop and remove %s", p.name, time.Since(begin).Round(time.Millisecond))
}

// run creates and starts a container with a memory limit in bytes.
func (p *pod) run(name string, memory int64, args ...string) (id string) {
	p.n.t.Helper()
	ctx := testContext(p.n.t)
	begin := time.Now()
	created, err := p.n.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: p.id,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name},
			Image:    &cri.ImageSpec{Image: testImage},
			Command:  p.command,
			Args:     args,
			LogPath:  name + ".log",
			Linux: &cri.LinuxContainerConfig{
				Resources: &cri.LinuxContainerResources{
					MemoryLimitInBytes: memory, CpuQuota: 50000, CpuPeriod: 100000, CpuShares: 512, OomScoreAdj: 600,
				},
				SecurityContext: &cri.LinuxContainerSecurityContext{
					NamespaceOptions: p.config.Linux.SecurityContext.NamespaceOptions,
					RunAsUser:        &cri.Int64Value{Value: p.user},
					// As the kubelet does, except for privileged containers.
					MaskedPaths: []string{"/proc/kcore"},
				},
			},
		},
		SandboxConfig: p.config,
	})
	if err != nil {
		p.n.t.Fatalf("create container %s: %v", name, err)
	}
	if _, err := p.n.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		p.n.t.Fatalf("start container %s: %v", name, err)
	}
	p.n.t.Logf("container %s: create to running %s", name, time.Since(begin).Round(time.Millisecond))
	return created.ContainerId
}

func (n *node) status(id string) *cri.ContainerStatus {
	n.t.Helper()
	answer, err := n.runtime.ContainerStatus(testContext(n.t), &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		n.t.Fatalf("status of container %s: %v", id, err)
	}
	return answer.Status
}

// awaitExit returns the status of a container that has ended.
func (n *node) awaitExit(id string) *cri.ContainerStatus {
	n.t.Helper()
	var s *cri.ContainerStatus
	ended := eventually(30*time.Second, func() bool {
		s = n.status(id)
		return s.State == cri.ContainerState_CONTAINER_EXITED
	})
	if !ended {
		n.t.Fatalf("container %s does not end: %v", id, s)
	}
	return s
}

func (n *node) exec(id string, args ...string) (string, error) {
	n.t.Helper()
	answer, err := n.runtime.ExecSync(testContext(n.t), &cri.ExecSyncRequest{
		ContainerId: id, Cmd: append([]string{"/bin/" + helperName}, args...), Timeout: 20,
	})
	if err != nil {
		return "", err
	}
	if answer.ExitCode != 0 {
		return "", fmt.Errorf("exit code %d: %s", answer.ExitCode, answer.Stderr)
	}
	return strings.TrimSpace(string(answer.Stdout)), nil
}
