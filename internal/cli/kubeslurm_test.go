package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The wrappers for kube-slurm's templates write manifests for berth. What they cannot
// understand must not start a pod.
func TestKubeSlurmWrappers(t *testing.T) {
	scripts, err := filepath.Glob("../../packaging/kube-slurm*.sh")
	if err != nil || len(scripts) == 0 {
		t.Fatal(scripts, err)
	}
	folder := t.TempDir()
	for _, path := range scripts {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(path)), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "berth"), []byte("#!/bin/sh\necho \"$@\"\nexec cat\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, script, want string
		env                []string
		fails              bool
	}{
		{"GPUs", "image", "nvidia.com/gpu: 2}", []string{"SLURM_GPUS=2"}, false},
		{"GPUs of a type", "image", "nvidia.com/gpu: 2}", []string{"SLURM_GPUS=a100:2"}, false},
		{"GPUs of several types", "custom-image", "nvidia.com/gpu: 5}", []string{"SLURM_GPUS=a100:2,v100:3", "KUBE_SCRIPT=/s"}, false},
		{"no GPUs", "image", "mountPath: \"/workspace\"}, ]\n    \n", []string{"SLURM_GPUS=0"}, false},
		{"unknown GPUs", "image", "not a number of GPUs: many", []string{"SLURM_GPUS=many"}, true},
		{"a host that looks like a number", "image", `kubernetes.io/hostname: "007"`, []string{"SLURMD_NODENAME=007"}, false},
		{"no script", "custom-image", "name the script to run", nil, true},
		{"a kubeconfig", "image", "run --kubeconfig /a -f -", []string{"KUBECONFIG=/a"}, false},
		{"several kubeconfigs", "image", "names several files", []string{"KUBECONFIG=/a:/b"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			wrapper := exec.Command(filepath.Join(folder, "kube-slurm-"+test.script+"-job.sh"))
			wrapper.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + folder, "KUBE_IMAGE=i", "KUBE_WORK_VOLUME=/w", "SLURM_JOB_ID=7", "SLURMD_NODENAME=n1"}, test.env...)
			said, err := wrapper.CombinedOutput()
			if (err != nil) != test.fails || !strings.Contains(string(said), test.want) || test.fails && strings.Contains(string(said), "kind: Pod") {
				t.Errorf("got %v and %q, want %q", err, said, test.want)
			}
		})
	}
}
