package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// scheduleLimit bounds the wait for a usable control plane.
const scheduleLimit = time.Minute

// usable measures the time until the control plane can be used: it is ready, has the
// default ServiceAccount and the root certificate that every pod mounts, and has
// scheduled a first pod. The figure includes the start of the command that detects
// this. berth starts that command when the cluster is up.
func (b *bencher) usable() (map[string]float64, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command, err := b.command("run", "--quiet", "--", self, "-schedule")
	if err != nil {
		return nil, err
	}
	start := time.Now()
	out, err := command.Output()
	if err != nil {
		return nil, err
	}
	at, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("read time of the first pod: %w", err)
	}
	return map[string]float64{"usable control plane, s": time.Unix(0, at).Sub(start).Seconds()}, nil
}

// clusterConfig returns the configuration for clients of the cluster that the environment names. They
// have no limit of requests.
func clusterConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// schedule returns when the cluster of the environment's kubeconfig is usable
// and has scheduled a first pod.
func schedule() error {
	ctx, cancel := context.WithTimeout(context.Background(), scheduleLimit)
	defer cancel()
	config, err := clusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if _, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return fmt.Errorf("ask whether the API server is ready: %w", err)
	}
	if _, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
		return err
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
		return err
	}
	pod, err := client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "first"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox:1.37"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	watch, err := client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", pod.Name).String(),
		ResourceVersion: pod.ResourceVersion,
	})
	if err != nil {
		return err
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if state, ok := event.Object.(*corev1.Pod); ok && state.Spec.NodeName != "" {
			fmt.Println(time.Now().UnixNano())
			return nil
		}
	}
	return fmt.Errorf("the first pod was given to no node: %w", ctx.Err())
}
