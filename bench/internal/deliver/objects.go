package deliver

import (
	"fmt"
	"net/url"
)

type object = map[string]any

// rollout returns a DaemonSet, which brings the image to all nodes.
func (s Spec) rollout(name string, n int, image string) object {
	pod := s.pod(n, image, []string{"first", "$(OUT)/first-$(NODE)"})
	// With 0 the API server removes a pod before its containers have ended.
	pod["terminationGracePeriodSeconds"] = 1
	return object{
		"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": object{"name": name},
		"spec": object{
			"selector": object{"matchLabels": object{"app": name}},
			"template": object{"metadata": object{"labels": object{"app": name}}, "spec": pod},
		},
	}
}

// work returns a Job with a worker on each node.
func (s Spec) work(name string, n int, image string) object {
	pod := s.pod(n, image, []string{
		"sh", "-c", fmt.Sprintf("exec python3 /opt/worker.py %s/shards $OUT %d $JOB_COMPLETION_INDEX", Inside, s.Nodes),
	})
	pod["restartPolicy"] = "Never"
	container := pod["containers"].([]object)[0]
	container["resources"] = object{"requests": object{"cpu": "1", "memory": fmt.Sprintf("%dM", s.MemoryMB)}}
	pod["affinity"] = object{"podAntiAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": []object{{
		"topologyKey": "kubernetes.io/hostname", "labelSelector": object{"matchLabels": object{"worker": name}},
	}}}}
	return object{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": object{"name": name},
		"spec": object{
			"completions": s.Nodes, "parallelism": s.Nodes, "completionMode": "Indexed", "backoffLimit": 0,
			"template": object{"metadata": object{"labels": object{"worker": name}}, "spec": pod},
		},
	}
}

// stages returns a Job whose container runs the pipeline.
func (s Spec) stages(name string, n int, image string) object {
	pod := s.pod(n, image, []string{"python3", "/opt/pipeline.py", fmt.Sprintf("%s/%d", s.Inside, n)})
	pod["restartPolicy"] = "Never"
	return object{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": object{"name": name},
		"spec": object{"backoffLimit": 0, "template": object{"spec": pod}},
	}
}

func (s Spec) pod(n int, image string, command []string) object {
	host := s.Registry
	if at, err := url.Parse(s.Registry); err == nil {
		host = at.Host
	}
	return object{
		"terminationGracePeriodSeconds": 0,
		"containers": []object{{
			"name": "main", "image": host + "/" + image, "imagePullPolicy": "IfNotPresent", "command": command,
			"env": []object{
				{"name": "NODE", "valueFrom": object{"fieldRef": object{"fieldPath": "spec.nodeName"}}},
				{"name": "OUT", "value": fmt.Sprintf("%s/%d", s.Inside, n)},
			},
		}},
	}
}
