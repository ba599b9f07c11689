package kinds

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

// neighbour reads an object from an example file of Bridge Operator or WLM-Operator, and fills
// in its placeholders.
func neighbour(t testing.TB, name string) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../test/neighbours", name))
	if err != nil {
		t.Fatal(err)
	}
	filled := strings.NewReplacer(
		"{{RESOURCE_URL}}", "http://cluster:6820/slurm/v0.0.38/", "{{RESOURCE_SECRET}}", "mysecret",
		"{{JOBSCRIPT}}", "mybucket:slurm_batch.sh", "{{S3_SECRET}}", "mysecret-s3", "{{ENDPOINT}}", "minio:9000",
	).Replace(string(text))
	return object(t, filled)
}

func object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatal(err)
	}
	return object
}

func TestJob0OfBridgeOperator(t *testing.T) {
	request, err := Read(neighbour(t, "Bridge-Operator/samples/core/operator/job0slurm.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/bash\n#SBATCH --job-name=test\n#SBATCH --output=test.out\nmodule load intelmpi\necho $PWD\n"
	if string(request.Script) != script {
		t.Errorf("script %q, want %q", request.Script, script)
	}
	request.Script = nil
	request.Unused = nil
	want := Request{
		Partition: "skylake", Nodes: 1, Tasks: 1, JobName: "test", Dir: "/home/ec2-user/test/",
		Output: "slurmjob-sample.out", Error: "slurmjob-sample.err", ResourceURL: "http://cluster:6820/slurm/v0.0.38/",
		Path:        "/usr/mpi/gcc/openmpi-4.0.3rc4/bin:/usr/local/bin:/usr/bin:/usr/local/sbin:/usr/sbin:/opt/ibutils/bin",
		LibraryPath: "/usr/mpi/gcc/openmpi-4.0.3rc4/lib",
	}
	if !reflect.DeepEqual(request, want) {
		t.Errorf("got %+v, want %+v", request, want)
	}
}

func TestJob1OfBridgeOperator(t *testing.T) {
	object := neighbour(t, "Bridge-Operator/samples/core/operator/job1slurm.yaml")
	request, err := Read(object)
	if err != nil || !reflect.DeepEqual(request.ScriptObject, &S3Object{"mybucket", "slurm_batch.sh"}) || request.S3 != (S3Storage{"mysecret-s3", "minio:9000", false}) ||
		request.Upload != nil || HasResults(object) || request.Output != "slurmjob-sample.out" {
		t.Errorf("got %+v, %v", request, err)
	}
}

func TestUpload(t *testing.T) {
	object := object(t, "{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, spec: {jobdata: {jobscript: run.sh}, s3upload: {bucket: b, files: ' a.txt,, /data/b '}, s3storage: {s3secret: s, endpoint: e}}}")
	request, err := Read(object)
	if err != nil || !reflect.DeepEqual(request.Upload, &Upload{"b", []string{"a.txt", "/data/b"}}) || request.S3 != (S3Storage{"s", "e", true}) || !HasResults(object) {
		t.Errorf("got %+v, %v", request, err)
	}
	for count, want := range map[int]bool{maxUploads: true, maxUploads + 1: false} {
		object.Object["spec"].(map[string]any)["s3upload"].(map[string]any)["files"] = strings.Repeat("a,", count)
		if _, err := Read(object); (err == nil) != want || err != nil && !strings.Contains(err.Error(), "1000 at most are uploaded: have the script put them into an archive") {
			t.Errorf("%d files: %v", count, err)
		}
	}
}

func TestExamplesOfWLMOperator(t *testing.T) {
	request, err := Read(neighbour(t, "wlm-operator/examples/batch-example.yaml"))
	want := Request{Script: []byte("#!/bin/sh\n#SBATCH --nodes=1\nsrun sleep 5\nsrun hostname\n"), Features: []string{"cuda-10"}}
	if err != nil || !reflect.DeepEqual(request, want) {
		t.Errorf("got %+v, %v; want %+v", request, err, want)
	}
	volumes := map[string]Results{
		"cow": {"cow.out", map[string]any{"name": "data", "hostPath": map[string]any{"path": "/home/vagrant/job-results", "type": "DirectoryOrCreate"}}},
		"fox": {"fox-result.tar.gz", map[string]any{"name": "nfs-storage", "nfs": map[string]any{"server": "192.168.1.41", "path": "/var/nfsshare/results"}}},
	}
	for name, want := range volumes {
		request, err := Read(neighbour(t, "wlm-operator/examples/"+name+".yaml"))
		if err != nil || !reflect.DeepEqual(request.Results, &want) {
			t.Errorf("%s: got %+v, %v", name, request.Results, err)
		}
		if !strings.HasPrefix(string(request.Script), "#!/bin/") || !reflect.DeepEqual(request.Features, []string{"containers-singularity"}) {
			t.Errorf("%s: got %+v", name, request)
		}
	}
}

func TestInputs(t *testing.T) {
	request, err := Read(object(t, `{apiVersion: wlm.sylabs.io/v1alpha1, kind: SlurmJob, spec: {batch: "#!/bin/sh\n", prepare: {to: ., mount: {name: inputs, hostPath: {path: /in}}}}}`))
	want := &Inputs{".", map[string]any{"name": "inputs", "hostPath": map[string]any{"path": "/in"}}}
	if err != nil || !reflect.DeepEqual(request.Inputs, want) {
		t.Errorf("got %+v, %v", request.Inputs, err)
	}
}

// TestReadNamesEveryProblem: each problem has one line, which names the field.
func TestReadNamesEveryProblem(t *testing.T) {
	for name, test := range map[string]struct{ object, want string }{
		"s3": {
			"{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, spec: {jobdata: {jobscript: 'b:s', scriptlocation: s3, additionaldata: 'b:d'}, s3upload: {bucket: b}}}",
			"spec.jobdata.additionaldata is not supported yet: have the script fetch its files\n" +
				"spec.s3storage: give s3secret, the name of a Secret with accesskey and secretkey, and endpoint, the host name of the S3 store",
		},
		"s3 without a bucket": {
			"{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, spec: {jobdata: {jobscript: run.sh, scriptlocation: s3}, s3storage: {s3secret: a, endpoint: b}}}",
			`spec.jobdata.jobscript "run.sh": give BUCKET:OBJECT with scriptlocation: s3`,
		},
		"properties": {
			`{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, spec: {jobdata: {jobscript: run.sh}, jobproperties: '{"NodesNumber": "none", "Queue": "a b", "currentWorkingDir": "x", "Queues": 1, "Tasks": {}}'}}`,
			`spec.jobproperties: NodesNumber "none": give a whole number from 1 to 65536` + "\n" +
				`spec.jobproperties: Queue "a b": give one word without spaces and commas` + "\n" +
				`spec.jobproperties: no property "Queues": there are ErrorFileName, NodesNumber, OutputFileName, Queue, RunLimitHour, RunLimitMinute, Tasks, currentWorkingDir, envLibPath, envPath, slurmJobName` + "\n" +
				`spec.jobproperties: Tasks: give a string or a number` + "\n" +
				`spec.jobproperties: currentWorkingDir "x": give an absolute path`,
		},
		"script": {
			"{apiVersion: wlm.sylabs.io/v1alpha1, kind: SlurmJob, spec: {batch: 'srun hostname', nodeSelector: {wlm.sylabs.io/nodes: 4, disk: ssd, wlm.sylabs.io/partition: -x, wlm.sylabs.io/gpu: 'a|b'}}}",
			"spec.batch: a batch script begins with #!, such as #!/bin/sh\n" +
				"spec.nodeSelector: disk: no label of a partition: use wlm.sylabs.io/partition, or wlm.sylabs.io/NAME: VALUE for the feature NAME-VALUE of nodes\n" +
				`spec.nodeSelector: wlm.sylabs.io/gpu: feature "gpu-a|b": use letters, digits, dots, - and _` + "\n" +
				"spec.nodeSelector: wlm.sylabs.io/nodes: give the job's size with #SBATCH lines in spec.batch\n" +
				`spec.nodeSelector: wlm.sylabs.io/partition "-x": give one word without spaces and commas`,
		},
		"volumes": {
			"{apiVersion: wlm.sylabs.io/v1alpha1, kind: SlurmJob, spec: {batch: '#!/bin/sh', prepare: {to: ' ', mount: {name: a}}, results: {from: a}}}",
			"spec.results.mount: give a name and one volume, as in a pod, such as persistentVolumeClaim: {claimName: data}\n" +
				"spec.prepare.to is empty: give a path",
		},
		"no kind": {"{apiVersion: v1, kind: Pod}", "v1 Pod is no Slurm job"},
	} {
		_, err := Read(object(t, test.object))
		if err == nil || err.Error() != test.want {
			t.Errorf("%s: got\n%v\nwant\n%s", name, err, test.want)
		}
	}
}

// TestParametersArePropertiesToo: jobproperties win, and numbers need no quotes.
func TestParametersArePropertiesToo(t *testing.T) {
	request, err := Read(object(t, `{apiVersion: bridgejob.ibm.com/v1alpha1, kind: BridgeJob, spec: {kill: true, jobdata: {jobscript: run.sh, jobparameters: '{"Tasks": 2, "Queue": "a"}'},
  jobproperties: '{"Queue": "b", "RunLimitHour": 1, "RunLimitMinute": "30"}'}}`))
	if err != nil || request.Tasks != 2 || request.Partition != "b" || request.TimeLimit.String() != "1h30m0s" || request.ScriptFile != "run.sh" || !request.Kill {
		t.Errorf("got %+v, %v", request, err)
	}
}

func TestSetOperatorFields(t *testing.T) {
	for state, want := range map[string][2]string{
		Waiting: {"SUBMITTED", "Pending"}, Rejected: {"FAILED", "Failed"}, "PENDING": {"PENDING", "Pending"}, "RUNNING": {"RUNNING", "Running"},
		"COMPLETED": {"DONE", "Succeeded"}, "CANCELLED": {"KILLED", "Failed"}, "TIMEOUT": {"FAILED", "Failed"}, "LATER": {"UNKNOWN", "Running"},
	} {
		bridge, wlm := Status{State: state, Started: "then"}, Status{State: state, Started: "then"}
		bridge.SetOperatorFields(BridgeJob)
		wlm.SetOperatorFields(SlurmJob)
		if bridge.JobStatus != want[0] || bridge.StartTime != "then" || bridge.Status != "" || wlm.Status != want[1] || wlm.JobStatus != "" || wlm.StartTime != "" {
			t.Errorf("%s: %+v, %+v", state, bridge, wlm)
		}
	}
}

func TestDefinitionsHaveTheOperatorsNames(t *testing.T) {
	all, err := Definitions()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, object := range all {
		names = append(names, object.GetName())
	}
	if want := []string{"bridgejobs.bridgejob.ibm.com", "slurmjobs.wlm.sylabs.io", "wlmjobs.wlm.sylabs.io"}; !reflect.DeepEqual(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

func FuzzRead(f *testing.F) {
	for _, name := range []string{"Bridge-Operator/samples/core/operator/job0slurm.yaml", "wlm-operator/examples/batch-example.yaml", "wlm-operator/examples/fox.yaml"} {
		text, err := neighbour(f, name).MarshalJSON()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzbound.Watch(t)
		object := &unstructured.Unstructured{}
		if object.UnmarshalJSON(text) != nil {
			return
		}
		request, err := Read(object)
		if err != nil {
			return
		}
		for _, word := range append(request.Features, request.Partition) {
			if strings.HasPrefix(word, "-") || strings.ContainsAny(word, " \t\n,|&") {
				t.Errorf("sbatch would not read %q as one name", word)
			}
		}
		for _, name := range []string{request.Dir, request.Output, request.Error, request.Path, request.LibraryPath, request.JobName, request.ScriptFile} {
			if strings.ContainsAny(name, "\x00\n\r") {
				t.Errorf("%q contains control characters", name)
			}
		}
	})
}

// TestScriptInsteadOfPath: a script without scriptlocation yields a short message.
func TestScriptInsteadOfPath(t *testing.T) {
	bridge := func(jobdata map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "bridgejob.ibm.com/v1alpha1", "kind": "BridgeJob", "spec": map[string]any{"jobdata": jobdata},
		}}
	}
	long := strings.Repeat("echo hällo\n", 1<<16)
	_, err := Read(bridge(map[string]any{"jobscript": "#!/bin/sh\n" + long}))
	if err == nil || err.Error() != "spec.jobdata.jobscript is a script, and with scriptlocation: remote a path: set spec.jobdata.scriptlocation: inline" {
		t.Errorf("got %.300v", err)
	}
	_, err = Read(bridge(map[string]any{"jobscript": long}))
	if err == nil || len(err.Error()) > 2*maxQuoted || !strings.HasSuffix(err.Error(), `...": a file name contains no control characters`) {
		t.Errorf("got %.1000v", err)
	}
}
