package workload

import (
	"regexp"
	"slices"
	"strings"
)

const loginRemedy = "log in to the registry (podman login, docker login)"

// PullRemedy returns the remedy for a permanent error of an image pull, or "" for other
// errors. It looks for words of containerd, berth and Go's standard library.
func PullRemedy(message string) string {
	for _, known := range []struct{ words, remedy string }{
		{"server gave HTTP response to HTTPS client", "the registry has no TLS: allow that with --registry NAME=http://NAME"},
		{"failed to verify certificate", "name the certificate of the registry's authority: export SSL_CERT_FILE=FILE"},
		{"authorization failed", loginRemedy},
		{"401 Unauthorized", loginRemedy},
		{"give an image for this kind of machine", "or ask Slurm for nodes of the image's kind (--constraint)"},
	} {
		if strings.Contains(message, known.words) {
			return known.remedy
		}
	}
	return ""
}

// podRemedy returns the same remedy for a pod.
func podRemedy(message string) string {
	remedy := PullRemedy(message)
	if remedy == loginRemedy {
		remedy += ", or give the pod imagePullSecrets"
	}
	return remedy
}

// wrappings matches the prefixes that a message collects on its way from runc to an
// event. They mean nothing to the user.
var wrappings = regexp.MustCompile(`^\(combined from similar events\): |Failed to create pod sandbox: |rpc error: code = \w+ desc = |failed to start sandbox "\w+": |failed to create containerd task: |failed to create shim task: |OCI runtime create failed: |runc create failed: |unable to start container process: |error during container init: |Error creating: `)

// plain returns a message without them.
func plain(message string) string { return wrappings.ReplaceAllString(message, "") }

// noProgram matches runc's words for a command that it cannot execute.
var noProgram = regexp.MustCompile(`exec: "([^"]*)": (executable file not found in \$PATH|(?:stat [^:]*: )?no such file or directory|is a directory|permission denied)`)

// missingProgram returns what an image lacks, by the words of runc, and nothing for
// other errors.
func missingProgram(message string) string {
	found := noProgram.FindStringSubmatch(message)
	switch {
	case found == nil:
		return ""
	case strings.HasPrefix(found[2], "is a") || strings.HasPrefix(found[2], "permission"):
		return "cannot execute \"" + found[1] + "\": " + found[2]
	case strings.HasPrefix(found[2], "executable"):
		return "has no program \"" + found[1] + "\" in its PATH"
	default:
		return "has no program \"" + found[1] + "\""
	}
}

// remedies lists advice by Kubernetes' reason and words of the message; the first
// row that fits counts. "|" separates alternatives, and "&" joins words that must
// all be present. The words come from the pinned versions of Kubernetes, containerd
// and runc.
var remedies = []struct{ reasons, words, remedy string }{
	{"Unschedulable", "persistentvolumeclaim & not found", "create the claim"},
	{"Unschedulable", "unbound immediate PersistentVolumeClaims", "correct the claim's storageClassName, or start its provisioner; 'kubectl describe pvc' says more"},
	{"Unschedulable", "Insufficient memory&Insufficient cpu", "ask Slurm for more memory (--mem) and processors (--cpus-per-task), or lower resources.requests"},
	{"Unschedulable", "Insufficient memory", "ask Slurm for more memory (--mem), or lower resources.requests.memory"},
	{"Unschedulable", "Insufficient cpu", "ask Slurm for more processors (--cpus-per-task), or lower resources.requests.cpu"},
	{"Unschedulable", "Insufficient ", "ask Slurm for that resource, or remove the request"},
	{"Unschedulable", "Too many pods", "ask Slurm for more nodes, or run fewer pods at once"},
	{"Unschedulable", "free ports for the requested pod ports", "give the pod another hostPort, or ask Slurm for more nodes"},
	{"Unschedulable", "were unschedulable", "open a node again: kubectl uncordon NODE"},
	{"Unschedulable", "no nodes available", "look for the reason in the log of the node role, which --debug-dir DIR keeps"},
	{"Unschedulable", "untolerated taint", "add a toleration for the node's taint; 'kubectl describe node' shows it"},
	{"Unschedulable", "", "change the pod's node selector, affinity, tolerations or claims"},
	{"NodeNotFound", "", "correct spec.nodeName; 'kubectl get nodes' lists the nodes"},
	{"SchedulingGated", "", "it starts when its schedulingGates are removed"},
	{"SchedulerError", "", "look for the reason in the log of the control role, which --debug-dir DIR keeps"},
	{"JobSuspended", "", "it starts when spec.suspend becomes false"},

	{"ErrImagePull|ImagePullBackOff|ErrImageNeverPull|ImageInspectError|RegistryUnavailable", "", "give the image as an archive (--image FILE), or check its name and that the registry can be reached"},
	{"InvalidImageName", "", "correct the image's name"},
	{"CreateContainerError|RunContainerError|StartError", "layer of a SIF file", "put the SIF file back as it was, or start again with the one that is there now"},
	{"StartError", ": image & has no program |: image & cannot execute ", "correct the container's command, or use an image that has the program"},

	{"FailedMount", "hostPath type check failed: ", "name a path that the nodes have (--mount SRC[:DST] gives pods a folder of the hosts), or use an emptyDir volume"},
	{"FailedMount|CreateContainerError", "mkdir &read-only file system|mkdir &permission denied", "name a path that the nodes have (--mount SRC[:DST] gives pods a folder of the hosts), or use an emptyDir volume"},
	{"FailedMount", "configmap \"&\" not found|non-existent config key", "create the ConfigMap that the pod mounts, or correct its name or key"},
	{"FailedMount", "secret \"&\" not found|non-existent secret key", "create the Secret that the pod mounts, or correct its name or key"},
	{"FailedMount|FailedAttachVolume|FailedMapVolume", "persistentvolumeclaim & not found", "create the claim that the pod mounts, or correct its name"},
	{"FailedMount|FailedAttachVolume|FailedMapVolume", "driver name & not found|does not contain driver", "install the CSI driver, or use another kind of volume"},
	{"FailedMount", "no space left on device", "raise resources.limits.memory, which bounds volumes in memory, or free space where the run has its files"},
	{"FailedPrepareDynamicResources|FailedCreatePodSandBox", "no space left on device", "free space where the run has its files, or name a larger disk with --state-dir"},
	{"FailedMount", "mount &no such device|mount &operation not permitted", "mount it on the hosts and give it to pods with --mount SRC[:DST]: a user cannot mount this file system"},
	{"FailedMount|FailedAttachVolume|FailedMapVolume", "", "correct the volume that the message names"},
	{"FailedCreatePodSandBox", "hostUsers", "leave hostUsers: false out: a run's pods share one user namespace"},
	{"FailedCreatePodSandBox", "sysctl", "correct securityContext.sysctls"},
	{"FailedCreatePodSandBox", "no runtime for|RuntimeHandler", "leave runtimeClassName out: there is one runtime, runc"},
	{"FailedCreatePodSandBox|NetworkNotReady|FailedCreatePodContainer|FailedPodSandBoxStatus", "", "correct what the message names in the pod's specification; if that is right, the log of containerd says more, which --debug-dir DIR keeps"},

	{"CreateContainerConfigError", "runAsNonRoot|non-root policy", "set securityContext.runAsUser, or leave runAsNonRoot out"},
	{"CreateContainerConfigError", "subPath|SubPath", "correct the subPath of the volumeMount"},
	{"CreateContainerConfigError", "", "create the ConfigMap or Secret that the container refers to, or correct its name"},
	{"CreateContainerError", "seccomp profile", "use the seccompProfile RuntimeDefault or Unconfined"},
	{"CrashLoopBackOff", "", "see its log for the reason"},

	{"FailedCreate", "exceeded quota", "raise the ResourceQuota, or lower what the pods request"},
	{"FailedCreate", "failed calling webhook|failed to call webhook", "start the webhook's server, or delete its configuration"},
	{"FailedCreate", "no PriorityClass with name", "create the PriorityClass, or leave priorityClassName out"},
	{"FailedCreate", "RuntimeClass & not found", "create the RuntimeClass, or leave runtimeClassName out"},
	{"FailedCreate", "serviceaccount & not found", "create the ServiceAccount, or correct its name"},
	{"FailedCreate|ReplicaSetCreateError", "", "correct the pod template"},
	{"SysctlForbidden", "", "leave this sysctl out of securityContext.sysctls"},
}

// existingRemedies lists advice for clusters that berth did not start. It is searched
// before remedies.
var existingRemedies = []struct{ reasons, words, remedy string }{
	{"Unschedulable", "Insufficient |Too many pods|no nodes available", "it starts when the cluster has room for it; lower resources.requests, or ask the cluster's administrator"},
	{"SchedulerError", "", "ask the cluster's administrator"},
	{"FailedCreate", "exceeded quota", "it starts when the namespace's quota has room; lower what the pods request, or ask for a larger ResourceQuota"},
	{"ErrImagePull|ImagePullBackOff|ImageInspectError|RegistryUnavailable", "401|authorization failed|denied", "correct the image's name, or give the pod imagePullSecrets for its registry"},
	{"ErrImagePull|ImagePullBackOff|ErrImageNeverPull|ImageInspectError|RegistryUnavailable", "", "correct the image's name, and use a registry that the cluster's nodes can reach; files of yours are unknown there"},
	{"FailedMount|CreateContainerError", "hostPath type check failed: |mkdir ", "name a path that the cluster's nodes have, or use another kind of volume"},
	{"FailedCreatePodSandBox|NetworkNotReady|FailedCreatePodContainer|FailedPodSandBoxStatus", "", "correct what the message names in the pod's specification, or ask the cluster's administrator"},
}

// outOfRange holds the words of runc and the kubelet for ids that the user namespace does
// not map.
const outOfRange = "cannot setuid to unmapped|cannot setgid to unmapped|setgroups: invalid argument|chown &: invalid argument"

// remedy returns advice for the user.
func (d diagnosis) remedy(reason, message string) string {
	if d.existing {
		for _, row := range existingRemedies {
			if slices.Contains(strings.Split(row.reasons, "|"), reason) && says(message, row.words) {
				return row.remedy
			}
		}
	}
	switch {
	case isPull(reason) && podRemedy(message) != "":
		return podRemedy(message)
	case says(message, outOfRange):
		return d.idRemedy()
	}
	for _, row := range remedies {
		if slices.Contains(strings.Split(row.reasons, "|"), reason) && says(message, row.words) {
			return row.remedy
		}
	}
	return "correct the pod's specification"
}

// says reports whether a message contains one of the alternatives in words, which are
// separated by |. An alternative may have several parts, separated by &, in any order.
func says(message, words string) bool {
	for alternative := range strings.SplitSeq(words, "|") {
		if !slices.ContainsFunc(strings.Split(alternative, "&"), func(part string) bool { return !strings.Contains(message, part) }) {
			return true
		}
	}
	return false
}

// idRemedy returns the remedy for users and groups that the nodes do not have.
func (d diagnosis) idRemedy() string {
	has := ""
	if d.ids != "" {
		has = ", " + d.ids
	}
	return "set runAsUser, runAsGroup, fsGroup and supplementalGroups to ids that the nodes have" + has +
		"; they are your own and your subordinate ids (/etc/subuid, /etc/subgid)"
}
