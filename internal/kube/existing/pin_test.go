package existing

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/kube/workload"
)

func objects(t *testing.T, text string) []workload.Object {
	t.Helper()
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	read, err := workload.Read([]string{path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func text(t *testing.T, objects []workload.Object) string {
	t.Helper()
	var all []string
	for _, object := range objects {
		encoded, err := yaml.Marshal(object.Object["spec"])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(encoded))
	}
	return strings.Join(all, "---\n")
}

const pods = `
apiVersion: v1
kind: Pod
metadata: {name: first}
spec: {containers: [{name: main, image: none}]}
---
apiVersion: v1
kind: Pod
metadata: {name: second}
spec: {nodeSelector: {disk: fast}, containers: [{name: main, image: none}]}
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec: {ports: [{port: 80}]}
`

const controllers = `
apiVersion: batch/v1
kind: Job
metadata: {name: work}
spec:
  template:
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
            - matchExpressions: [{key: disk, operator: Exists}]
      containers: [{name: main, image: none}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere}
spec:
  template:
    metadata: {labels: {app: everywhere}}
    spec: {containers: [{name: main, image: none}]}
`

func TestPin(t *testing.T) {
	for _, test := range []struct {
		name, manifests, want string
		hosts                 []string
	}{
		{"one host", pods, `containers:
- image: none
  name: main
nodeSelector:
  kubernetes.io/hostname: n1
---
containers:
- image: none
  name: main
nodeSelector:
  disk: fast
  kubernetes.io/hostname: n1
---
ports:
- port: 80
`, []string{"n1"}},
		{"bare pods take turns", pods, `containers:
- image: none
  name: main
nodeSelector:
  kubernetes.io/hostname: n1
---
containers:
- image: none
  name: main
nodeSelector:
  disk: fast
  kubernetes.io/hostname: n2
---
ports:
- port: 80
`, []string{"n1", "n2"}},
		{"controllers spread", controllers, `template:
  metadata:
    labels:
      berth.dev/run: run
  spec:
    affinity:
      nodeAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
          - matchExpressions:
            - key: disk
              operator: Exists
            - key: kubernetes.io/hostname
              operator: In
              values:
              - n1
              - n2
    containers:
    - image: none
      name: main
    topologySpreadConstraints:
    - labelSelector:
        matchLabels:
          berth.dev/run: run
      maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: DoNotSchedule
---
template:
  metadata:
    labels:
      app: everywhere
  spec:
    affinity:
      nodeAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
          - matchExpressions:
            - key: kubernetes.io/hostname
              operator: In
              values:
              - n1
              - n2
    containers:
    - image: none
      name: main
`, []string{"n1", "n2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			read := objects(t, test.manifests)
			if err := Pin(read, test.hosts, "run"); err != nil {
				t.Fatal(err)
			}
			if got := text(t, read); got != test.want {
				t.Errorf("got:\n%s", got)
			}
		})
	}
}

func TestPinRefusesUnknownKinds(t *testing.T) {
	err := Pin(objects(t, `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set}
spec: {replicatedJobs: [{template: {spec: {template: {spec: {containers: [{name: main}]}}}}}]}
---
apiVersion: example.org/v1
kind: Settings
metadata: {name: settings}
`), []string{"n1"}, "run")
	if err == nil || !strings.Contains(err.Error(), "JobSet set") || strings.Contains(err.Error(), "Settings") {
		t.Errorf("got %v", err)
	}
}

// A host that the user has chosen is not replaced silently.
func TestPinKeepsChosenHost(t *testing.T) {
	err := Pin(objects(t, `
apiVersion: v1
kind: Pod
metadata: {name: first}
spec: {nodeSelector: {kubernetes.io/hostname: n7}, containers: [{name: main, image: none}]}
`), []string{"n1", "n2"}, "run")
	if err == nil || !strings.Contains(err.Error(), "already names a host, n7") {
		t.Errorf("got %v", err)
	}
}

const kubeconfig = `
apiVersion: v1
kind: Config
current-context: here
contexts:
- {name: here, context: {cluster: one, user: me, namespace: mine}}
- {name: there, context: {cluster: other, user: me}}
clusters:
- {name: one, cluster: {server: "https://one.example:6443", certificate-authority: ca.crt}}
- {name: other, cluster: {server: "https://other.example:6443"}}
users:
- {name: me, user: {tokenFile: token}}
`

// The kubeconfig is passed to processes with other working directories, so Open resolves its
// relative paths. They are relative to the file.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	authority, err := pki.NewAuthority("one")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"config": kubeconfig, "ca.crt": string(authority.Cert), "token": "word"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ option, want string }{{"", "mine"}, {"other", "other"}} {
		c, err := Open(filepath.Join(dir, "config"), test.option)
		if err != nil {
			t.Fatal(err)
		}
		if c.Namespace != test.want {
			t.Errorf("namespace %s, want %s", c.Namespace, test.want)
		}
		got := string(c.Kubeconfig)
		if strings.Contains(got, "ca.crt") || strings.Contains(got, "other.example") || !strings.Contains(got, filepath.Join(dir, "token")) {
			t.Errorf("got kubeconfig:\n%s", got)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "config"), []byte(strings.Replace(kubeconfig, "current-context: here", "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(dir, "config"), ""); err == nil || !strings.Contains(err.Error(), "use-context") {
		t.Errorf("got %v without a current context", err)
	}
}

func TestRightsHaveNames(t *testing.T) {
	var got []string
	for _, r := range append(objectRights(jobResource.GroupResource()), right{verb: "get", resource: "pods", subresource: "log"}) {
		got = append(got, r.String())
	}
	if want := []string{"create jobs.batch", "get jobs.batch", "delete jobs.batch", "get pods/log"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
