package system

import (
	"encoding/json"
	"fmt"
	"strings"
)

// inContainer is where a task's storage is in a container.
const inContainer = "/data"

// object is one of Kubernetes', as JSON: the bench links none of its libraries.
type object = map[string]any

// objects are what is the same in all manifests of a system.
type objects struct {
	image       string
	hostNetwork bool
	// mounted: the system puts the storage into the container itself.
	mounted bool
	// name is a part of all names, where several may be on one cluster.
	name string
	// counted: the pod shows at its end how its node's connections were made.
	counted bool
}

// manifest is a task as a pod, with its server and what else it needs.
func manifest(task Task, o objects) (string, error) {
	if o.name == "" {
		o.name = "bench"
	}
	folder := inContainer
	var volumes, mounts []object
	var all []object
	switch task.Folder {
	case NoFolder, Scratch:
		if task.Folder == Scratch && !o.mounted {
			return "", &Unsupported{"this system cannot show a folder of the host to a pod"}
		}
	case Root:
		folder = "/tmp"
	case EmptyDir:
		volumes = []object{{"name": "data", "emptyDir": object{}}}
	case Claim:
		volumes = []object{{"name": "data", "persistentVolumeClaim": object{"claimName": o.name}}}
		all = append(all, object{
			"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": object{"name": o.name},
			"spec": object{"accessModes": []string{"ReadWriteOnce"}, "resources": object{"requests": object{"storage": "1Gi"}}},
		})
	}
	if volumes != nil {
		mounts = []object{{"name": "data", "mountPath": inContainer}}
	}
	container := object{"name": "main", "image": o.image, "imagePullPolicy": "IfNotPresent", "volumeMounts": mounts}
	spec := object{
		"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "volumes": volumes,
		"hostNetwork": o.hostNetwork, "containers": []object{container},
	}
	if o.hostNetwork {
		spec["dnsPolicy"] = "ClusterFirstWithHostNet"
	}
	args := replace(task.Args, FolderHere, folder)
	if s := task.Server; s != nil && s.At != OnHost {
		name := o.name + "-server"
		all = append(all, o.server(s, name)...)
		if s.At == InPod {
			args = byAddress(args, name+"-pod")
		} else {
			args = byAddress(args, name)
		}
		// It starts on another node, when the server listens: until then its pod has
		// no name. The second is for the rules of a Service, which come after.
		spec["initContainers"] = []object{{
			"name": "wait", "image": o.image, "imagePullPolicy": "IfNotPresent",
			"command": []string{"sh", "-c", fmt.Sprintf("until getent ahostsv4 %s-pod >/dev/null; do sleep 0.2; done; sleep 1", name)},
		}}
		spec["affinity"] = apart(name)
	}
	container["command"] = args
	if o.counted {
		container["command"] = countedAfter(args)
		container["env"] = []object{{"name": "NODE", "valueFrom": object{"fieldRef": object{"fieldPath": "status.hostIP"}}}}
	}
	all = append(all, object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": o.name, "labels": object{"app": o.name}}, "spec": spec,
	})
	var text strings.Builder
	for _, one := range all {
		encoded, err := json.Marshal(one)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "---\n%s\n", encoded)
	}
	return text.String(), nil
}

// byAddress is a command that looks a name up and puts the address into its
// arguments: not every program takes names, and none is to be measured with it.
func byAddress(args []string, name string) []string {
	var words []string
	for _, arg := range args {
		quoted := "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		words = append(words, strings.ReplaceAll(quoted, ServerHere, `'"$server"'`))
	}
	return []string{"sh", "-c", fmt.Sprintf(
		`set -e; server=$(getent ahostsv4 %s); server=${server%%%%[!0-9.]*}; exec %s`, name, strings.Join(words, " "))}
}

// server is a Deployment of one pod, a Service, and one without an address of its
// own, which is only a name for the pod's.
func (o objects) server(s *Server, name string) []object {
	service := func(name string, spec object) object {
		spec["ports"] = []object{{"port": s.Port}}
		return object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name}, "spec": spec}
	}
	container := object{
		"name": "main", "image": o.image, "imagePullPolicy": "IfNotPresent", "command": s.Args,
		// Not a probe that goes on: each is a connection that the server sees.
		"startupProbe": object{"tcpSocket": object{"port": s.Port}, "periodSeconds": 1},
	}
	return []object{
		service(name, object{"selector": object{"app": name}}),
		service(name+"-pod", object{"selector": object{"app": name}, "clusterIP": "None"}),
		{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": name},
			"spec": object{
				"selector": object{"matchLabels": object{"app": name}},
				"template": object{
					"metadata": object{"labels": object{"app": name}},
					"spec":     object{"hostNetwork": o.hostNetwork, "terminationGracePeriodSeconds": 0, "containers": []object{container}},
				},
			},
		},
	}
}

// apart keeps a pod off the node of those with a label.
func apart(label string) object {
	return object{"podAntiAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": []object{{
		"topologyKey": "kubernetes.io/hostname", "labelSelector": object{"matchLabels": object{"app": label}},
	}}}}
}
