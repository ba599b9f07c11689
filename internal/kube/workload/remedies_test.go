package workload

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runtimeModule is the folder of the module that pins containerd and runc.
const runtimeModule = "../../../runtime"

// foundIn names a file of a pinned module, and words of it.
type foundIn struct{ module, file, words string }

func (f foundIn) check(t *testing.T, message string, dirs map[string]string) {
	t.Helper()
	if dirs[f.module] == "" {
		if f.module == "std" {
			dirs[f.module] = goroot(t)
		} else if strings.HasPrefix(f.module, "github.com/") {
			dirs[f.module] = dirOf(t, runtimeModule, f.module)
		} else {
			dirs[f.module] = dirOf(t, ".", f.module)
		}
	}
	content, err := os.ReadFile(filepath.Join(dirs[f.module], f.file))
	if err != nil || !strings.Contains(string(content), f.words) {
		t.Errorf("%s of %s no longer has %q: %v", f.file, f.module, f.words, err)
	}
	if !strings.Contains(message, f.words) {
		t.Errorf("message %q has no %q", message, f.words)
	}
}

func goroot(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "src")
}

const (
	kubernetesModule   = "k8s.io/kubernetes"
	machineryModule    = "k8s.io/apimachinery"
	apiserverModule    = "k8s.io/apiserver"
	containerdModule   = "github.com/containerd/containerd/v2"
	runcModule         = "github.com/opencontainers/runc"
	plugins            = "pkg/scheduler/framework/plugins/"
	shape              = "0/2 nodes are available: "
	setUp              = `MountVolume.SetUp failed for volume "data" : `
	forbidden          = `Error creating: pods "x-" is forbidden: `
	createTask         = `failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: `
	createSandbox      = `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to start sandbox "5f6a": ` + createTask
	nodeLogRemedy      = "look for the reason in the log of the node role, which --debug-dir DIR keeps"
	archiveRemedy      = "give the image as an archive (--image FILE), or check its name and that the registry can be reached"
	hostPathRemedy     = "name a path that the nodes have (--mount SRC[:DST] gives pods a folder of the hosts), or use an emptyDir volume"
	driverRemedy       = "install the CSI driver, or use another kind of volume"
	claimRemedy        = "create the claim that the pod mounts, or correct its name"
	sifRemedy          = "put the SIF file back as it was, or start again with the one that is there now"
	webhookRemedy      = "start the webhook's server, or delete its configuration"
	hostMountRemedy    = "mount it on the hosts and give it to pods with --mount SRC[:DST]: a user cannot mount this file system"
	createObjectRemedy = "create the ConfigMap or Secret that the container refers to, or correct its name"
	programRemedy      = "correct the container's command, or use an image that has the program"
	sandboxRemedy      = "correct what the message names in the pod's specification; if that is right, the log of containerd says more, which --debug-dir DIR keeps"
)

// notFoundWords are the API machinery's, in all messages about a missing object.
var notFoundWords = foundIn{machineryModule, "pkg/api/errors/errors.go", " not found"}

// messages holds a message of Kubernetes, containerd or runc for each row of the
// remedies. Words that another project or the kernel wrote have no source.
var messages = []struct {
	reason, message, want string
	source                []foundIn
}{
	{"Unschedulable", shape + `persistentvolumeclaim "absent" not found. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.`, "create the claim", []foundIn{notFoundWords}},
	{"Unschedulable", shape + "pod has unbound immediate PersistentVolumeClaims. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.", "correct the claim's storageClassName, or start its provisioner; 'kubectl describe pvc' says more", []foundIn{{kubernetesModule, plugins + "volumebinding/volume_binding.go", "pod has unbound immediate PersistentVolumeClaims"}}},
	{"Unschedulable", shape + "2 Insufficient cpu, 2 Insufficient memory.", "ask Slurm for more memory (--mem) and processors (--cpus-per-task), or lower resources.requests", []foundIn{{kubernetesModule, plugins + "noderesources/fit.go", "Insufficient memory"}, {kubernetesModule, plugins + "noderesources/fit.go", "Insufficient cpu"}}},
	{"Unschedulable", shape + "2 Insufficient memory.", "ask Slurm for more memory (--mem), or lower resources.requests.memory", []foundIn{{kubernetesModule, plugins + "noderesources/fit.go", "Insufficient memory"}}},
	{"Unschedulable", shape + "2 Insufficient cpu.", "ask Slurm for more processors (--cpus-per-task), or lower resources.requests.cpu", []foundIn{{kubernetesModule, plugins + "noderesources/fit.go", "Insufficient cpu"}}},
	{"Unschedulable", shape + "2 Insufficient nvidia.com/gpu.", "ask Slurm for that resource, or remove the request", []foundIn{{kubernetesModule, plugins + "noderesources/fit.go", "Insufficient "}}},
	{"Unschedulable", shape + "2 Too many pods.", "ask Slurm for more nodes, or run fewer pods at once", []foundIn{{kubernetesModule, plugins + "noderesources/fit.go", "Too many pods"}}},
	{"Unschedulable", shape + "2 node(s) didn't have free ports for the requested pod ports.", "give the pod another hostPort, or ask Slurm for more nodes", []foundIn{{kubernetesModule, plugins + "nodeports/node_ports.go", "node(s) didn't have free ports for the requested pod ports"}}},
	{"Unschedulable", shape + "2 node(s) were unschedulable.", "open a node again: kubectl uncordon NODE", []foundIn{{kubernetesModule, plugins + "nodeunschedulable/node_unschedulable.go", "node(s) were unschedulable"}}},
	{"Unschedulable", "no nodes available to schedule pods", nodeLogRemedy, []foundIn{{kubernetesModule, "pkg/scheduler/scheduler.go", "no nodes available to schedule pods"}}},
	{"Unschedulable", shape + "2 node(s) had untolerated taint(s).", "add a toleration for the node's taint; 'kubectl describe node' shows it", []foundIn{{kubernetesModule, plugins + "tainttoleration/taint_toleration.go", "node(s) had untolerated taint(s)"}}},
	{"Unschedulable", shape + "2 node(s) didn't match Pod's node affinity/selector.", "change the pod's node selector, affinity, tolerations or claims", []foundIn{{kubernetesModule, plugins + "nodeaffinity/node_affinity.go", "node(s) didn't match Pod's node affinity/selector"}}},
	{"NodeNotFound", "there is no node n9", "correct spec.nodeName; 'kubectl get nodes' lists the nodes", nil},
	{"SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates", "it starts when its schedulingGates are removed", nil},
	{"SchedulerError", `binding rejected: running Bind plugin "DefaultBinder": pods "a" not found`, "look for the reason in the log of the control role, which --debug-dir DIR keeps", []foundIn{notFoundWords}},
	{"JobSuspended", "the job is suspended", "it starts when spec.suspend becomes false", nil},

	{"ImagePullBackOff", `container main: Back-off pulling image "registry.example/absent:1"`, archiveRemedy, []foundIn{{kubernetesModule, "pkg/kubelet/images/image_manager.go", "Back-off pulling image "}}},
	{"ErrImageNeverPull", `container main: Container image "absent:1" is not present with pull policy of Never`, archiveRemedy, []foundIn{{kubernetesModule, "pkg/kubelet/images/image_manager.go", " is not present with pull policy of Never"}}},
	{"ImageInspectError", `container main: Failed to inspect image "absent:1": rpc error: code = DeadlineExceeded desc = context deadline exceeded`, archiveRemedy, []foundIn{{kubernetesModule, "pkg/kubelet/images/image_manager.go", "Failed to inspect image "}}},
	{"ErrImagePull", `container main: failed to pull and unpack image "docker.io/library/absent:1": failed to resolve reference "docker.io/library/absent:1": failed to do request: Head "https://registry-1.docker.io/v2/": dial tcp: i/o timeout`, archiveRemedy, []foundIn{{containerdModule, "internal/cri/server/images/image_pull.go", "failed to pull and unpack image "}, {containerdModule, "core/remotes/docker/resolver.go", "failed to do request: "}}},
	{"InvalidImageName", `container main: Failed to apply default image tag "UPPER": couldn't parse image name "UPPER": invalid reference format`, "correct the image's name", []foundIn{{kubernetesModule, "pkg/kubelet/images/image_manager.go", "Failed to apply default image tag "}}},
	{"CreateContainerError", "container main: serve mount: open layer: open layer of a SIF file: open /project/x.sif: no such file or directory", sifRemedy, nil},
	{"StartError", `container main: image busybox:1.37 has no program "nothere" in its PATH`, programRemedy, nil},
	{"StartError", `container main: image busybox:1.37 cannot execute "/etc/passwd": permission denied`, programRemedy, nil},

	{"ErrImagePull", `container main: failed to do request: Head "https://registry.example/v2/": http: server gave HTTP response to HTTPS client`, "the registry has no TLS: allow that with --registry NAME=http://NAME", []foundIn{{"std", "net/http/client.go", "http: server gave HTTP response to HTTPS client"}}},
	{"ErrImagePull", `container main: failed to do request: Head "https://registry.example/v2/": tls: failed to verify certificate: x509: certificate signed by unknown authority`, "name the certificate of the registry's authority: export SSL_CERT_FILE=FILE", []foundIn{{"std", "crypto/tls/common.go", "tls: failed to verify certificate: "}}},
	{"ImagePullBackOff", `container main: pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed`, loginRemedy + ", or give the pod imagePullSecrets", []foundIn{{containerdModule, "core/remotes/docker/resolver.go", "authorization failed"}, {containerdModule, "core/remotes/docker/resolver.go", "pull access denied, repository does not exist or may require authorization"}}},
	{"ErrImagePull", "container main: unexpected status from HEAD request to https://registry.example/v2/x/manifests/1: 401 Unauthorized", loginRemedy + ", or give the pod imagePullSecrets", nil},
	{"ErrImagePull", "container main: it is for linux/arm64, not for linux/amd64: give an image for this kind of machine", "or ask Slurm for nodes of the image's kind (--constraint)", nil},

	{"FailedMount", setUp + "hostPath type check failed: /scratch/absent is not a directory", hostPathRemedy, []foundIn{{kubernetesModule, "pkg/volume/hostpath/host_path.go", "hostPath type check failed: "}, {kubernetesModule, "pkg/volume/util/operationexecutor/operation_generator.go", "MountVolume.SetUp failed"}}},
	{"FailedMount", setUp + "mkdir /scratch: permission denied", hostPathRemedy, nil},
	{"CreateContainerError", `container main: failed to generate container "5f6a" spec: failed to generate spec: failed to mkdir "/scratch": mkdir /scratch: read-only file system`, hostPathRemedy, []foundIn{{containerdModule, "internal/cri/opts/spec_linux_opts.go", "failed to mkdir "}}},
	{"FailedMount", setUp + `configmap "absent" not found`, "create the ConfigMap that the pod mounts, or correct its name or key", []foundIn{notFoundWords}},
	{"FailedMount", setUp + "configmap references non-existent config key: absent", "create the ConfigMap that the pod mounts, or correct its name or key", []foundIn{{kubernetesModule, "pkg/volume/configmap/configmap.go", "configmap references non-existent config key: "}}},
	{"FailedMount", setUp + `secret "absent" not found`, "create the Secret that the pod mounts, or correct its name or key", []foundIn{notFoundWords}},
	{"FailedMount", setUp + "references non-existent secret key: absent", "create the Secret that the pod mounts, or correct its name or key", []foundIn{{kubernetesModule, "pkg/volume/secret/secret.go", "references non-existent secret key: "}}},
	{"FailedMount", `Unable to attach or mount volumes: error processing PVC default/absent: failed to fetch PVC from API server: persistentvolumeclaim "absent" not found`, claimRemedy, []foundIn{notFoundWords}},
	{"FailedMount", setUp + "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name absent.csi not found in the list of registered CSI drivers", driverRemedy, []foundIn{{kubernetesModule, "pkg/volume/csi/csi_client.go", " not found in the list of registered CSI drivers"}}},
	{"FailedAttachVolume", `AttachVolume.Attach failed for volume "pv" : CSINode n1 does not contain driver absent.csi`, driverRemedy, []foundIn{{kubernetesModule, "pkg/volume/util/operationexecutor/operation_generator.go", "AttachVolume.Attach failed"}}},
	{"FailedMount", setUp + "write /volumes/data/..2026_11_27/token: no space left on device", "raise resources.limits.memory, which bounds volumes in memory, or free space where the run has its files", nil},
	{"FailedPrepareDynamicResources", "Failed to prepare dynamic resources: prepare dynamic resources: checkpoint ResourceClaim state: could not save checkpoint dra_manager_state: write /var/lib/kubelet/.138219104: no space left on device", "free space where the run has its files, or name a larger disk with --state-dir", []foundIn{{kubernetesModule, "pkg/kubelet/cm/dra/manager.go", "checkpoint ResourceClaim state: "}}},
	{"FailedMount", setUp + "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs server:/x /volumes/data\nOutput: mount.nfs: Operation not permitted, mount (2): operation not permitted", hostMountRemedy, []foundIn{{"k8s.io/mount-utils", "mount_linux.go", "mount failed: "}}},
	{"FailedMapVolume", `MapVolume.SetUpDevice failed for volume "pv" : words`, "correct the volume that the message names", []foundIn{{kubernetesModule, "pkg/volume/util/operationexecutor/operation_generator.go", "MapVolume.SetUpDevice failed"}}},
	{"FailedCreatePodSandBox", "Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces", "leave hostUsers: false out: a run's pods share one user namespace", []foundIn{{kubernetesModule, "pkg/kubelet/userns/userns_manager.go", "can't set `spec.hostUsers: false`, runtime does not support user namespaces"}}},
	{"FailedCreatePodSandBox", createSandbox + `failed to write sysctl net.ipv4.x = "y": invalid argument`, "correct securityContext.sysctls", []foundIn{{runcModule, "internal/sys/sysctl_linux.go", "failed to write sysctl "}}},
	{"FailedCreatePodSandBox", `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "kata" is configured`, "leave runtimeClassName out: there is one runtime, runc", []foundIn{{containerdModule, "internal/cri/config/config.go", "no runtime for "}}},
	{"FailedCreatePodSandBox", `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create containerd container: words`, sandboxRemedy, []foundIn{{containerdModule, "internal/cri/server/podsandbox/sandbox_run.go", "failed to create containerd container: "}}},
	{"NetworkNotReady", "network is not ready: cni plugin not initialized", sandboxRemedy, []foundIn{{kubernetesModule, "pkg/kubelet/errors.go", "network is not ready"}}},

	{"CreateContainerConfigError", `container main: container has runAsNonRoot and image will run as root (pod: "a_default(u)", container: main)`, "set securityContext.runAsUser, or leave runAsNonRoot out", []foundIn{{kubernetesModule, "pkg/kubelet/kuberuntime/security_context_others.go", "container has runAsNonRoot and image will run as root"}}},
	{"CreateContainerConfigError", `container main: container's runAsUser breaks non-root policy (pod: "a_default(u)", container: main)`, "set securityContext.runAsUser, or leave runAsNonRoot out", []foundIn{{kubernetesModule, "pkg/kubelet/kuberuntime/security_context_others.go", "container's runAsUser breaks non-root policy"}}},
	{"CreateContainerConfigError", `container main: failed to prepare subPath for volumeMount "data" of container "main"`, "correct the subPath of the volumeMount", []foundIn{{kubernetesModule, "pkg/kubelet/kubelet_pods.go", "failed to prepare subPath for volumeMount "}}},
	{"CreateContainerConfigError", "container main: error SubPath `/x` must not be an absolute path", "correct the subPath of the volumeMount", []foundIn{{kubernetesModule, "pkg/kubelet/kubelet_pods.go", "` must not be an absolute path"}}},
	{"CreateContainerConfigError", "container main: couldn't find key absent in ConfigMap default/c", createObjectRemedy, []foundIn{{kubernetesModule, "pkg/kubelet/kubelet_pods.go", "couldn't find key "}}},
	{"CreateContainerConfigError", `container main: secret "absent" not found`, createObjectRemedy, []foundIn{notFoundWords}},
	{"CreateContainerError", `container main: cannot load seccomp profile "/var/lib/kubelet/seccomp/absent.json": open /var/lib/kubelet/seccomp/absent.json: no such file or directory`, "use the seccompProfile RuntimeDefault or Unconfined", []foundIn{{containerdModule, "contrib/seccomp/seccomp.go", "cannot load seccomp profile "}}},
	{"CrashLoopBackOff", "container main: back-off 10s restarting failed container=main pod=a_default(u)", "see its log for the reason", []foundIn{{kubernetesModule, "pkg/kubelet/kuberuntime/kuberuntime_manager.go", " restarting failed container="}}},

	{"FailedCreate", forbidden + "exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1", "raise the ResourceQuota, or lower what the pods request", []foundIn{{apiserverModule, "pkg/admission/plugin/resourcequota/controller.go", "exceeded quota: "}}},
	{"FailedCreate", `Error creating: Internal error occurred: failed calling webhook "x.example": failed to call webhook: Post "https://x.default.svc:443/": dial tcp 10.0.0.1:443: connect: connection refused`, webhookRemedy, []foundIn{{apiserverModule, "pkg/util/webhook/error.go", "failed calling webhook "}, {apiserverModule, "pkg/admission/plugin/webhook/mutating/dispatcher.go", "failed to call webhook: "}}},
	{"FailedCreate", forbidden + "no PriorityClass with name absent was found", "create the PriorityClass, or leave priorityClassName out", []foundIn{{kubernetesModule, "plugin/pkg/admission/priority/admission.go", "no PriorityClass with name "}}},
	{"FailedCreate", forbidden + `pod rejected: RuntimeClass "absent" not found`, "create the RuntimeClass, or leave runtimeClassName out", []foundIn{{kubernetesModule, "plugin/pkg/admission/runtimeclass/admission.go", "pod rejected: RuntimeClass "}}},
	{"FailedCreate", forbidden + `error looking up service account default/absent: serviceaccount "absent" not found`, "create the ServiceAccount, or correct its name", []foundIn{{kubernetesModule, "plugin/pkg/admission/serviceaccount/admission.go", "error looking up service account "}, notFoundWords}},
	{"FailedCreate", `Error creating: Pod "x-" is invalid: spec.containers[0].image: Required value`, "correct the pod template", []foundIn{{kubernetesModule, "pkg/controller/controller_utils.go", "Error creating: "}}},
	{"ReplicaSetCreateError", `Failed to create new replica set "x-5d8f": words`, "correct the pod template", []foundIn{{kubernetesModule, "pkg/controller/deployment/sync.go", "Failed to create new replica set "}}},
	{"SysctlForbidden", `forbidden sysctl: "kernel.msgmax" not allowlisted`, "leave this sysctl out of securityContext.sysctls", []foundIn{{kubernetesModule, "pkg/kubelet/sysctl/allowlist.go", "forbidden sysctl: "}}},
}

func TestRemedies(t *testing.T) {
	dirs, used, usedByPulls := map[string]string{}, map[int]bool{}, map[string]bool{}
	for _, test := range messages {
		stuck := newStuckPods(false).neverStarts("pod a", test.reason, test.message)
		if stuck.Remedy != test.want {
			t.Errorf("%s: %s\nremedy %q\nwant   %q", test.reason, test.message, stuck.Remedy, test.want)
		}
		for _, source := range test.source {
			source.check(t, test.message, dirs)
		}
		if isPull(test.reason) && PullRemedy(stuck.Message) != "" {
			usedByPulls[PullRemedy(stuck.Message)] = true
			continue
		}
		for i, row := range remedies {
			if slices.Contains(strings.Split(row.reasons, "|"), test.reason) && says(stuck.Message, row.words) {
				used[i] = true
				break
			}
		}
	}
	for i, row := range remedies {
		if !used[i] {
			t.Errorf("no message for the row of %s with %q", row.reasons, row.words)
		}
	}
	if len(usedByPulls) != 4 {
		t.Errorf("%d remedies for pulls have a message", len(usedByPulls))
	}
}

// The remedy for an id that the nodes lack does not depend on the reason.
func TestRemediesForIds(t *testing.T) {
	for _, message := range []string{
		createTask + "setup user: cannot setuid to unmapped uid 1000650000 in user namespace",
		createTask + "setup user: cannot setgid to unmapped gid 1000650000 in user namespace",
		createTask + "setup user: setgroups: invalid argument",
		setUp + "chown /volumes/data: invalid argument",
	} {
		if got := newStuckPods(false).remedy("StartError", message); !strings.HasPrefix(got, "set runAsUser, runAsGroup, fsGroup and supplementalGroups to ids that the nodes have;") {
			t.Errorf("%s: %s", message, got)
		}
	}
	dirs := map[string]string{}
	for _, words := range []string{"cannot setuid to unmapped uid", "cannot setgid to unmapped gid"} {
		foundIn{runcModule, "libcontainer/init_linux.go", words}.check(t, words, dirs)
	}
}
