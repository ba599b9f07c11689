package system

import (
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/bench/internal/sequence"
)

// inContainer is the mount point of a task's storage in a container.
const inContainer = "/data"

// object is a Kubernetes object as JSON. The bench links no Kubernetes library.
type object = map[string]any

// objects holds the common parts of a system's manifests.
type objects struct {
	image       string
	hostNetwork bool
	// mounted is set if the system itself mounts the storage in the container.
	mounted bool
	// name is a part of all names, because a cluster may have several sets of objects.
	name string
	// counted makes the pod print its node's counters of connections.
	counted bool
	// sameNode permits servers on the task's node.
	sameNode bool
	// limit bounds the time of each task if there are several.
	limit time.Duration
}

// manifest returns a pod for tasks, with their servers and other objects. A task
// with a folder has a separate manifest.
func manifest(tasks []Task, o objects) (string, error) {
	task := tasks[0]
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
	if servers := distinct(tasks); len(servers) > 0 {
		name := o.name + "-server"
		all = append(all, o.server(servers, name)...)
		// The task starts once the servers listen: until then DNS does not know their
		// pod's name. The rules of the Service are set a moment later, hence the second.
		spec["initContainers"] = []object{{
			"name": "wait", "image": o.image, "imagePullPolicy": "IfNotPresent",
			"command": []string{"sh", "-c", fmt.Sprintf("until getent ahostsv4 %s-pod >/dev/null; do sleep 0.2; done; sleep 1", name)},
		}}
		if !o.sameNode {
			spec["affinity"] = apart(name)
		}
	}
	container["command"] = replace(task.Args, FolderHere, folder)
	if len(tasks) > 1 || task.Window || task.Server != nil {
		container["command"] = []string{"sh", "-c", script(tasks, o, folder)}
	}
	if o.counted {
		container["env"] = []object{{"name": "NODE", "valueFrom": object{"fieldRef": object{"fieldPath": "status.hostIP"}}}}
	}
	all = append(all, object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": o.name, "labels": object{"app": o.name}}, "spec": spec,
	})
	return sequence.Encode(all...)
}

// distinct returns the servers that tasks have in pods, each once.
func distinct(tasks []Task) (servers []*Server) {
	for _, t := range tasks {
		if t.Server != nil && t.Server.At != OnHost && !slices.ContainsFunc(servers, t.Server.is) {
			servers = append(servers, t.Server)
		}
	}
	return servers
}

// server returns a Deployment of one pod with all servers, a Service, and a
// headless Service, which is only a name for the pod's address.
func (o objects) server(servers []*Server, name string) []object {
	var ports, containers []object
	for i, s := range servers {
		if !s.UDPOnly {
			ports = append(ports, object{"name": fmt.Sprintf("port-%d", s.Port), "port": s.Port})
		}
		// A startup probe, which ends: each probe is a connection that the server sees.
		probe := object{"tcpSocket": object{"port": s.Port}, "periodSeconds": 1}
		if s.UDP {
			ports = append(ports, object{"name": fmt.Sprintf("port-%d-udp", s.Port), "port": s.Port, "protocol": "UDP"})
		}
		if s.UDPOnly {
			probe = object{"exec": object{"command": []string{"busybox", "grep", "-q", fmt.Sprintf(":%04X ", s.Port), "/proc/net/udp"}}, "periodSeconds": 1}
		}
		called := "main"
		if i > 0 {
			called = fmt.Sprintf("main-%d", i+1)
		}
		containers = append(containers, object{
			"name": called, "image": o.image, "imagePullPolicy": "IfNotPresent", "command": s.Args,
			"startupProbe": probe,
		})
	}
	service := func(name string, spec object) object {
		spec["ports"] = ports
		return object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name}, "spec": spec}
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
					"spec":     object{"hostNetwork": o.hostNetwork, "terminationGracePeriodSeconds": 0, "containers": containers},
				},
			},
		},
	}
}

// apart returns an anti-affinity to pods with a label.
func apart(label string) object {
	return object{"podAntiAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": []object{{
		"topologyKey": "kubernetes.io/hostname", "labelSelector": object{"matchLabels": object{"app": label}},
	}}}}
}
