package wishes

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/internal/job/permit"
	"berth.dev/berth/internal/testutil/fuzzbound"
)

// annotated returns a pod with pairs of annotations and their values.
func annotated(pairs ...string) *v1.Pod {
	notes := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		notes[pairs[i]] = pairs[i+1]
	}
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Annotations: notes}}
}

func amounts(pairs ...string) v1.ResourceList {
	list := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// container adds a container with requests, which are also its limits.
func container(pod *v1.Pod, pairs ...string) *v1.Pod {
	list := amounts(pairs...)
	pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Resources: v1.ResourceRequirements{Requests: list, Limits: list}})
	return pod
}

func texts(problems []Problem) (all []string, blocks bool) {
	for _, p := range problems {
		all, blocks = append(all, p.String()), blocks || p.Blocks
	}
	return all, blocks
}

func TestOptionsOfAllDialects(t *testing.T) {
	for _, c := range []struct {
		pod  *v1.Pod
		want string
	}{
		{annotated(), ""},
		{annotated("slurm.hpk.io/flags", "--nodelist=jedi1 --partition gpu"), "--nodelist=jedi1 --partition=gpu"},
		{annotated("slurm-job.knoc.io/flags", "--exclude=tie0,tie3,tie4 "), "--exclude=tie0,tie3,tie4"},
		{annotated("slurm-job.vk.io/flags", "--job-name=test-pod-cfg -t 2800"), "--job-name=test-pod-cfg --time=2800"},
		{annotated("slurm-job.vk.io/flags", "-p gpu\n-A 'my project'\n"), "--account=my project --partition=gpu"},
		{annotated("slurm-job.vk.io/flags", "-p gpu # the large one\n--time=5"), "--partition=gpu --time=5"},
		{annotated("slurmjob.slinky.slurm.net/timelimit", "5", "slurmjob.slinky.slurm.net/constraints", "a&b", "slurmjob.slinky.slurm.net/exclusive", "yes"),
			"--constraint=a&b --exclusive --time=5"},
		{annotated("slurmjob.slinky.slurm.net/exclusive", " False", "slurmjob.slinky.slurm.net/licenses", "matlab:2"), "--licenses=matlab:2"},
		{annotated("slurmjob.slinky.slurm.net/gres", "tmpdisk:10,shard:2"), "--gres=shard:2,tmpdisk:10"},
		{annotated("slurm.berth.dev/partition", "long", "slurm.berth.dev/time", "1-0", "slurm.berth.dev/exclusive", "user", "slurm.berth.dev/contiguous", "true"),
			"--contiguous --exclusive=user --partition=long --time=1-0"},
		// berth's own annotations are the strongest, and the last flag counts.
		{annotated("slurm.hpk.io/flags", "-p a -p b", "slurmjob.slinky.slurm.net/partition", "c"), "--partition=c"},
		{annotated("slurmjob.slinky.slurm.net/partition", "c", "slurm.berth.dev/partition", "d"), "--partition=d"},
		{annotated("slurm.hpk.io/flags", "--exclusive --contiguous -p a", "slurmjob.slinky.slurm.net/exclusive", "false", "slurm.berth.dev/contiguous", "False"), "--partition=a"},
		{annotated("slurm.hpk.io/flags", "--exclusive", "slurm.berth.dev/exclusive", "false"), ""},
		{annotated("slurm.hpk.io/flags", "--quiet -W"), ""},
	} {
		got, problems := Of(c.pod)
		said, _ := texts(problems)
		if options := strings.Join(got.Options, " "); options != c.want || len(said) > 0 || got.Alone != (c.want != "") {
			t.Errorf("%v: %s, alone %v, %q", c.pod.Annotations, options, got.Alone, said)
		}
	}
}

func TestCheckOptions(t *testing.T) {
	if err := CheckOptions([]string{"--contiguous", "--gres=gpu:a100:2", "--partition=long", "--time=2:00:00"}); err != nil {
		t.Error(err)
	}
	for _, word := range []string{"", "-p long", "/home/a/job.sh", "--uid=root", "--output=/etc/x", "--wrap=id", "--nodelist=/etc/passwd", "--export=ALL"} {
		if err := CheckOptions([]string{"--partition=long", word}); err == nil {
			t.Errorf("%q is permitted", word)
		}
	}
}

func TestOwnersCountForSlurmBridge(t *testing.T) {
	job := Owner{Kind: "Job", Name: "j", Annotations: map[string]string{"slurmjob.slinky.slurm.net/job-name": "j", "slurmjob.slinky.slurm.net/qos": "low", "slurm.hpk.io/flags": "--time=1"}}
	workload := Owner{Kind: "Workload", Name: "w", Annotations: map[string]string{"slurmjob.slinky.slurm.net/job-name": "w", "slurmjob.slinky.slurm.net/user-id": "0"}}
	got, problems := Of(annotated("slurmjob.slinky.slurm.net/job-name", "p"), job, workload)
	said, blocks := texts(problems)
	if options := strings.Join(got.Options, " "); options != "--job-name=w --qos=low" || blocks {
		t.Errorf("%s, %q", options, said)
	}
	if want := "Workload w: slurmjob.slinky.slurm.net/user-id: --uid: the job runs as you"; len(said) != 1 || said[0] != want {
		t.Errorf("got %q, want %q", said, want)
	}
}

func TestSelectorsChoosePlaces(t *testing.T) {
	pod := annotated()
	pod.Spec.NodeSelector = map[string]string{"slurm.berth.dev/partition": "gpu", "kubernetes.io/os": "linux"}
	pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
			{Key: "slurm.berth.dev/node", Operator: v1.NodeSelectorOpIn, Values: []string{"Gpu_1"}},
		}}},
	}}}
	got, problems := Of(pod)
	if options := strings.Join(got.Options, " "); options != "--nodelist=Gpu_1 --partition=gpu" || len(problems) > 0 || got.Alone {
		t.Errorf("%s, alone %v, %v", options, got.Alone, problems)
	}
	pod.Annotations["slurm.berth.dev/partition"] = "gpu"
	if got, problems := Of(pod); !got.Alone || len(problems) > 0 {
		t.Errorf("the same partition: alone %v, %v", got.Alone, problems)
	}
	pod.Annotations["slurm.berth.dev/partition"] = "cpu"
	_, problems = Of(pod)
	said, blocks := texts(problems)
	if want := "nodeSelector: slurm.berth.dev/partition: gpu differs from --partition=cpu: delete one of them"; !blocks || !slices.Equal(said, []string{want}) {
		t.Errorf("got %q, blocks %v, want %q", said, blocks, want)
	}
}

func TestAmounts(t *testing.T) {
	small := []string{"cpu", "500m", "memory", "1Gi"}
	overhead := container(annotated(), small...)
	overhead.Spec.Overhead = amounts("cpu", "250m", "memory", "1Gi")
	initial := container(annotated(), small...)
	initial.Spec.InitContainers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: amounts("cpu", "3", "memory", "512Mi")}}}
	level := container(annotated(), small...)
	level.Spec.Resources = &v1.ResourceRequirements{Requests: amounts("cpu", "2", "memory", "8Gi")}
	gpus := func(flags string) *v1.Pod {
		return container(annotated("slurm.hpk.io/flags", flags), "cpu", "1", "memory", "1Gi", "nvidia.com/gpu", "2", "example.com/dongle", "1")
	}
	const gi = 1 << 30
	for _, c := range []struct {
		name          string
		pod           *v1.Pod
		milli, memory int64
		gpus          int64
		kind          string
	}{
		{"nothing", annotated(), 0, 0, 0, ""},
		{"two containers", container(container(annotated(), small...), small...), 1000, 2 * gi, 0, ""},
		{"overhead", overhead, 750, 2 * gi, 0, ""},
		{"init container", initial, 3000, gi, 0, ""},
		{"of the pod", level, 2000, 8 * gi, 0, ""},
		{"mem", container(annotated("slurm-job.knoc.io/flags", "--mem=8G"), small...), 500, 8 * gi, 0, ""},
		{"less mem", container(annotated("slurm-job.knoc.io/flags", "--mem=16"), small...), 500, gi, 0, ""},
		{"tasks", container(annotated("slurm.hpk.io/flags", "-n 4 -c 2 --mem-per-cpu=1024"), small...), 8000, 8 * gi, 0, ""},
		{"slinky", annotated("slurmjob.slinky.slurm.net/cpu-per-task", "1500m", "slurmjob.slinky.slurm.net/mem-per-node", "100Mi"), 2000, 100 << 20, 0, ""},
		{"GPUs", gpus("--gres=gpu:a100:2,shard:1 --cpus-per-gpu=4 --mem-per-gpu=2G"), 8000, 4 * gi, 2, "a100"},
		{"GPUs by name", gpus("--gpus-per-node=h100:2"), 1000, gi, 2, "h100"},
		{"fewer GPUs", gpus("--gres=gpu"), 1000, gi, 2, ""},
		{"too many", container(annotated("slurm.hpk.io/flags", "--cpus-per-gpu=1048576"), "nvidia.com/gpu", "9007199254740992", "example.com/dongle", "1"), 1 << 60, 0, 1 << 53, ""},
		{"tasks of a gang", container(annotated("slurm.hpk.io/flags", "-N 4 -n 14 -w n[1,2],n5,n6 --mem-per-cpu=1G --gpus=v100:8", own+gangName, "g", own+gangSize, "4"), "nvidia.com/gpu", "2", "example.com/dongle", "1"), 4000, 4 * gi, 2, "v100"},
	} {
		got, problems := Of(c.pod)
		if got.MilliCPU != c.milli || got.Memory != c.memory || got.GPUs["nvidia.com/gpu"] != c.gpus || got.GPUType != c.kind || len(problems) > 0 {
			t.Errorf("%s: %+v, %v", c.name, got, problems)
		}
		if c.gpus > 0 && !slices.Equal(got.Others, []v1.ResourceName{"example.com/dongle"}) {
			t.Errorf("%s: others %v", c.name, got.Others)
		}
	}
}

func TestDevices(t *testing.T) {
	for flags, want := range map[string]string{
		"--gres=shard:1 --gres=gpu:a100:2":       "[] a100",
		"--gres=gpu:a100:2 --gres=shard:1":       "[--gres=shard:1] ",
		"--gpus-per-node=a100:2 --gres=shard:1":  "[--gres=shard:1] a100",
		"--gres=GPU:a100:2":                      "[] a100",
		"--gres=gres:gpu:a100:2,GRES/tmpdisk:10": "[--gres=tmpdisk:10] a100",
	} {
		got, problems := Of(container(annotated("slurm.hpk.io/flags", flags), "nvidia.com/gpu", "2"))
		if said := fmt.Sprint(got.Options, " ", got.GPUType); said != want || len(problems) > 0 {
			t.Errorf("%s: %s, %v; want %s", flags, said, problems, want)
		}
	}
}

func TestGangs(t *testing.T) {
	labelled := func(pod *v1.Pod, label, value string) *v1.Pod {
		pod.Labels = map[string]string{label: value}
		return pod
	}
	native := annotated()
	group := "workers"
	native.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
	for _, c := range []struct {
		pod   *v1.Pod
		owner Owner
		name  string
		size  int
	}{
		{annotated("slurm.berth.dev/gang", "mpi", "slurm.berth.dev/gang-size", "4"), Owner{}, "ns/mpi", 4},
		{annotated("slurm.berth.dev/gang", "mpi", "slurm.berth.dev/gang-size", "1"), Owner{}, "", 0},
		{annotated(), Owner{Kind: "JobSet", Gang: 3}, "", 0},
		{labelled(annotated("leaderworkerset.sigs.k8s.io/size", "3"), "leaderworkerset.sigs.k8s.io/group-key", "abc"), Owner{}, "LeaderWorkerSet ns/abc", 3},
		{labelled(annotated("kueue.x-k8s.io/pod-group-total-count", "2"), "kueue.x-k8s.io/pod-group-name", "g"), Owner{}, "Kueue ns/g", 2},
		{labelled(annotated(), "scheduling.x-k8s.io/pod-group", "g"), Owner{Kind: "PodGroup", Gang: 2}, "PodGroup.scheduling.x-k8s.io ns/g", 2},
		{labelled(annotated(), "scheduling.x-k8s.io/pod-group", "missing"), Owner{Kind: "JobSet", Gang: 8}, "", 0},
		{labelled(annotated(), "jobset.sigs.k8s.io/jobset-name", "s"), Owner{Kind: "JobSet", Gang: 5}, "JobSet ns/s/0", 5},
		{labelled(annotated(), "jobset.sigs.k8s.io/jobset-name", "s"), Owner{Kind: "JobSet", Gang: 4, Part: "workers"}, "JobSet ns/s/0/workers", 4},
		{labelled(annotated(), "jobset.sigs.k8s.io/jobset-name", "s"), Owner{}, "", 0},
		{native, Owner{Kind: "PodGroup", Gang: 2}, "PodGroup.scheduling.k8s.io ns/workers", 2},
	} {
		got, problems := Of(c.pod, c.owner)
		if got.Gang != c.name || got.GangSize != c.size || got.Alone || len(problems) > 0 {
			t.Errorf("%v %v: %q of %d, alone %v, %v", c.pod.Annotations, c.pod.Labels, got.Gang, got.GangSize, got.Alone, problems)
		}
	}
}

func TestSizesOfGangsThatCannotBe(t *testing.T) {
	for size, want := range map[string]string{"many": "is not a number of pods", "0": "is not a number of pods", "4097": "a gang has at most 4096 pods"} {
		pod := annotated("leaderworkerset.sigs.k8s.io/size", size)
		pod.Labels = map[string]string{"leaderworkerset.sigs.k8s.io/group-key": "k"}
		got, problems := Of(pod)
		said, blocks := texts(problems)
		if !blocks || len(said) != 1 || !strings.Contains(said[0], want) || got.Gang != "" {
			t.Errorf("%s: %q, blocks %v, gang %q", size, said, blocks, got.Gang)
		}
	}
}

// TestProblems checks that nothing but permitted options reaches sbatch, and the messages.
func TestProblems(t *testing.T) {
	for _, c := range []struct {
		key, value, said string
		blocks           bool
	}{
		{"slurm.hpk.io/flags", "--wrap=id", "--wrap: the containers are the program", false},
		{"slurm.hpk.io/flags", "--wra 'id'", "--wrap: the containers are the program", false},
		{"slurm.hpk.io/flags", "--export=ALL,LD_PRELOAD=/tmp/x.so", "--export: set env", false},
		{"slurm.hpk.io/flags", "-o /home/alice/.ssh/authorized_keys", "--output: the output of a pod", false},
		{"slurm.hpk.io/flags", "-e../x -D /", "--error: ", false},
		{"slurm.hpk.io/flags", "--uid=0 --gid 0", "--uid: the job runs as you", false},
		{"slurm.hpk.io/flags", "--prolog=/tmp/x", "--prolog: a pod may not use it", true},
		{"slurm.hpk.io/flags", "--bb=x --bbf=/etc/passwd", "--bb: a pod may not use it", true},
		{"slurm.hpk.io/flags", "--container=/x", "--container: a pod may not use it", true},
		{"slurm.hpk.io/flags", "--nodelist=/etc/passwd", "list the nodes instead of a file", true},
		{"slurm.hpk.io/flags", "--job-name=../../x", "may not be a path", true},
		{"slurm.hpk.io/flags", "--hold", "--hold: use schedulingGates", true},
		{"slurm.hpk.io/flags", "--array=1-1000", "--array: use a Job", false},
		{"slurm.hpk.io/flags", "--nodes=4", "a pod has one node", false},
		{"slurm.hpk.io/flags", "--gres=gpu:2", "it asks for 2 GPUs, and the pod for 0", false},
		{"slurm.hpk.io/flags", "--gpus=x", "give a number of GPUs", true},
		{"slurm.hpk.io/flags", "--mem=lots", "give an amount of memory", true},
		{"slurm.hpk.io/flags", "-n 99999999999999999999", "give a number from 1", true},
		{"slurm.hpk.io/flags", "-c -1", "give a number from 1", true},
		{"slurm.hpk.io/flags", "--account=\"a\tb\"", "its value has control characters", true},
		{"slurm.hpk.io/flags", "--account=\"a", "unmatched", true},
		{"slurm.hpk.io/flags", "--account=", "it needs a value", true},
		{"slurm.hpk.io/flags", "--account", "option --account needs a value", true},
		{"slurm.hpk.io/flags", "--contiguous=x", "it takes no value", true},
		{"slurm.hpk.io/flags", "job.sh", "unexpected argument", true},
		{"slurm.hpk.io/flags", "-p gpu -- id", "is not an option of sbatch", true},
		{"slurm.hpk.io/flags", "-p gpu : -p cpu", "unexpected ':'", true},
		{"slurm.hpk.io/flags", "\"'--gres gres-flags'\"", "unexpected argument", true},
		{"slurm.hpk.io/flags", "'--gres gres-flags=x'", "a pod may not use it", true},
		{"slurm.hpk.io/flags", "--constraint=" + strings.Repeat("x", 5000), "more than 4096 bytes", true},
		{"slurm.berth.dev/partition", "gpu\n#SBATCH --wrap=id", "its value has control characters", true},
		{"slurm.berth.dev/partition", "", "it needs a value", true},
		{"slurm.berth.dev/job-name", "berth-join-7", "choose another name", true},
		{"slurm.berth.dev/wrap", "id", "--wrap: the containers", false},
		{"slurm.berth.dev/parition", "gpu", "--parition: a pod may not use it", true},
		{"slurmjob.slinky.slurm.net/parition", "gpu", "--parition: a pod may not use it", false},
		{"slurm.hpk.io/flags", "--nodelist=tie0,tie1,tie3", "slurm.hpk.io/flags: --nodelist=tie0,tie1,tie3: the job gets all", true},
		{"slurm.berth.dev/nodelist", "n[1-2]", "name one host", true},
		{"slurm.berth.dev/nodelist", "n[1]", "", false},
		{"slurm.hpk.io/flags", "--gres=gres/help", "it submits no job", true},
		{"slurm.hpk.io/flags", "--mail-user=-x", "give an address", true},
		{"slurm.berth.dev/time --wrap", "id", "a pod may not use it", true},
		{"slurm.berth.dev/gang", "x", "gang-size is missing", true},
		{"slurmjob.slinky.slurm.net/group-id", "0", "--gid: the job runs as you", false},
		{"slurmjob.slinky.slurm.net/priority", "9", "only operators of Slurm", false},
		{"slurmjob.slinky.slurm.net/max-nodes", "3", "a pod has one node", false},
		{"slurmjob.slinky.slurm.net/mem-per-node", "x", "is not a quantity", true},
		{"slurm-job.vk.io/pre-exec", "rm -rf $HOME", "use an init container", false},
		{"slurm-job.vk.io/singularity-options", "--nv", "containerd runs the pod", false},
		{"slurm-job.knoc.io/mpi-flags", "true", "start mpiexec", false},
		{"interlink.eu/pod-vpn", "true", "network of the cluster", false},
	} {
		got, problems := Of(annotated(c.key, c.value))
		said, blocks := texts(problems)
		if blocks != c.blocks || !strings.Contains(strings.Join(said, "\n"), c.said) || c.said == "" && len(said) > 0 {
			t.Errorf("%s=%.50q: %q, blocks %v", c.key, c.value, said, blocks)
		}
		if c.blocks && !got.Alone {
			t.Errorf("%s=%.50q: the pod may start on any node", c.key, c.value)
		}
		for _, option := range got.Options {
			checkOption(t, option)
		}
	}
}

// checkOption checks that a word is one permitted option of sbatch.
func checkOption(t *testing.T, word string) {
	t.Helper()
	name, value, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
	if !strings.HasPrefix(word, "--") || name != "gres" && !permit.In(permit.Placement, name) || strings.ContainsAny(value, "\n\r\x00") {
		t.Errorf("sbatch receives %q", word)
	}
}

func FuzzFlags(f *testing.F) {
	f.Add("-p gpu --gres=gpu:a100:2 --time 1-0 --account='a b' # x", "4G")
	f.Add("--mem=8G --nodes=3 --nodelist=tie0,tie1,tie3 --ntasks=16", "1")
	f.Fuzz(func(t *testing.T, line, value string) {
		fuzzbound.Watch(t)
		pod := container(annotated("slurm.hpk.io/flags", line, "slurmjob.slinky.slurm.net/mem-per-node", value, "slurm.berth.dev/mem-per-cpu", value,
			"slurmjob.slinky.slurm.net/gres", value, "slurm.berth.dev/nodelist", value), "nvidia.com/gpu", "1")
		got, _ := Of(pod)
		for _, option := range got.Options {
			checkOption(t, option)
		}
		if got.MilliCPU < 0 || got.Memory < 0 {
			t.Errorf("%+v", got)
		}
	})
}
