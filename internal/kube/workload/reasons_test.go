package workload

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// moduleDir returns the folder of a module in the version that berth's go.mod pins.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	return dirOf(t, ".", module)
}

// dirOf returns the folder of a module in the version that the go.mod of a folder pins.
func dirOf(t *testing.T, folder, module string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module)
	command.Dir = folder
	out, err := command.Output()
	if err != nil {
		t.Fatalf("find the source of %s: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}

// texts returns the string constants of a Go file, and the texts of the errors
// that its variables hold, by name.
func texts(t *testing.T, file string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, declaration := range parsed.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range group.Specs {
			values, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			for i, value := range values.Values {
				if call, ok := value.(*ast.CallExpr); ok && len(call.Args) > 0 {
					value = call.Args[0]
				}
				if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					found[values.Names[i].Name], _ = strconv.Unquote(literal.Value)
				}
			}
		}
	}
	return found
}

// compare fails the test for words of a source that are in no table, and for rows
// of a table that are in no source.
func compare(t *testing.T, source []string, table map[string]bool, others ...string) {
	t.Helper()
	for _, word := range source {
		if !table[word] && !slices.Contains(others, word) {
			t.Errorf("the pinned source has %q: add a row, or name it among the others", word)
		}
	}
	for word := range table {
		if !slices.Contains(source, word) {
			t.Errorf("the pinned source no longer has %q", word)
		}
	}
	for _, word := range others {
		if !slices.Contains(source, word) {
			t.Errorf("the pinned source no longer has %q, which is named among the others", word)
		}
	}
}

func keys[V any](table map[string]V) map[string]bool {
	set := map[string]bool{}
	for key := range table {
		set[key] = true
	}
	return set
}

func TestKubeletEvents(t *testing.T) {
	source := texts(t, filepath.Join(moduleDir(t, "k8s.io/kubernetes"), "pkg/kubelet/events/event.go"))
	table := keys(podEvents)
	table[failedEvent] = true
	compare(t, slices.Collect(maps.Values(source)), table,
		// Of pods that run or end.
		"Killing", "Preempting", "ExceededGracePeriod", "FailedKillPod", "ResizeDeferred", "ResizeInfeasible", "ResizeCompleted",
		"ResizeStarted", "ResizeError", "ProbeWarning", "FailedPreStopHook", "FailedSync", "FailedValidation",
		// Of volumes that are being changed, or are mounted already.
		"VolumeResizeFailed", "VolumeResizeSuccessful", "FileSystemResizeFailed", "FileSystemResizeSuccessful", "AlreadyMountedVolume",
		"SuccessfulAttachVolume", "SuccessfulMountVolume", "FailedMountOnFilesystemMismatch", "VolumePermissionChangeInProgress",
		// Of nodes.
		"NodeReady", "NodeNotReady", "NodeSchedulable", "NodeNotSchedulable", "Starting", "KubeletSetupFailed", "Rebooted", "Shutdown",
		"ContainerGCFailed", "ImageGCFailed", "FailedNodeAllocatableEnforcement", "NodeAllocatableEnforced",
		"PossibleMemoryBackedVolumesOnDisk", "CgroupV1", "InvalidImageID", "InvalidDiskCapacity", "FreeDiskSpaceFailed",
	)
}

func TestReasonsOfWaitingContainers(t *testing.T) {
	kubernetes := moduleDir(t, "k8s.io/kubernetes")
	var source []string
	for _, file := range []string{
		filepath.Join(kubernetes, "pkg/kubelet/images/types.go"),
		filepath.Join(kubernetes, "pkg/kubelet/container/sync_result.go"),
		filepath.Join(kubernetes, "pkg/kubelet/kuberuntime/kuberuntime_container.go"),
		filepath.Join(moduleDir(t, "k8s.io/cri-api"), "pkg/errors/errors.go"),
	} {
		for name, text := range texts(t, file) {
			if strings.HasPrefix(name, "Err") {
				source = append(source, text)
			}
		}
	}
	compare(t, source, keys(waitingReasons),
		// They are of pods that end or are changed, or only in events.
		"no matching container", "KillContainerError", "KillPodSandboxError", "ResizePodInPlaceError", "RemoveContainerError",
		"CreatePodSandboxError", "ConfigPodSandboxError",
	)
}

func TestSchedulerMessages(t *testing.T) {
	plugins := filepath.Join(moduleDir(t, "k8s.io/kubernetes"), "pkg/scheduler/framework/plugins")
	var source []string
	all := ""
	err := filepath.WalkDir(plugins, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		all += string(content)
		for name, text := range texts(t, path) {
			if strings.HasPrefix(strings.ToLower(name), "errreason") {
				source = append(source, text)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]bool{}
	for _, words := range capacityReasons {
		table[words] = true
	}
	for _, words := range []string{"Insufficient ", "Too many pods"} { // of the plugin NodeResourcesFit
		if !strings.Contains(all, `"`+words) {
			t.Errorf("the pinned source no longer has %q", words)
		}
		delete(table, words)
	}
	if !strings.Contains(all, "untolerated taint") {
		t.Error("the pinned source no longer has the words of isTainted")
	}
	compare(t, source, table,
		// What is missing: claims, labels, nodes of a name.
		"node(s) didn't find available persistent volumes to bind", "node(s) didn't match PersistentVolume's node affinity",
		"node(s) did not have enough free storage", "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
		"node(s) had no available volume zone", "node(s) didn't match Pod's required features",
		"node(s) didn't match Pod's node affinity/selector", "node(s) didn't match scheduler-enforced node affinity",
		"pod affinity terms conflict", "node(s) didn't match the requested node name", "node(s) had unknown conditions",
		// The same as isTainted's.
		"node(s) had taints that the pod didn't tolerate",
	)
}

func TestReasonsOfControllersAndAdmission(t *testing.T) {
	kubernetes := moduleDir(t, "k8s.io/kubernetes")
	for name, file := range map[string]string{
		"FailedCreatePodReason": "pkg/controller/controller_utils.go",
		"FailedRSCreateReason":  "pkg/controller/deployment/util/deployment_util.go",
	} {
		if reason := texts(t, filepath.Join(kubernetes, file))[name]; !creationEvents[reason] {
			t.Errorf("%s is %q, which is in no table", name, reason)
		}
	}
	known := map[string]bool{}
	for _, file := range []string{"pkg/kubelet/lifecycle/predicate.go", "pkg/kubelet/lifecycle/handlers.go", "pkg/kubelet/sysctl/allowlist.go"} {
		for _, reason := range texts(t, filepath.Join(kubernetes, file)) {
			known[reason] = true
		}
	}
	for reason := range rejections {
		if !known[reason] {
			t.Errorf("the pinned source no longer has %q", reason)
		}
	}
	for file, words := range map[string]string{
		"pkg/volume/hostpath/host_path.go":  "hostPath type check failed: ",
		"pkg/volume/configmap/configmap.go": "references non-existent config key",
		"pkg/volume/secret/secret.go":       "references non-existent secret key",
		"pkg/scheduler/scheduler.go":        "no nodes available to schedule pods",
		"pkg/volume/csi/csi_client.go":      "not found in the list of registered CSI drivers",
	} {
		content, err := os.ReadFile(filepath.Join(kubernetes, file))
		if err != nil || !strings.Contains(string(content), words) {
			t.Errorf("%s no longer has %q: %v", file, words, err)
		}
	}
}
