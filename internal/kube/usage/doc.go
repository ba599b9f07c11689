// Package usage serves the metrics API (metrics.k8s.io): the CPU and memory that
// nodes and pods use. kubectl top and HorizontalPodAutoscalers read it.
//
// Upstream's metrics-server is a pod and queries every kubelet four times a
// minute as long as it runs. Here the API server answers, and queries the
// kubelets only for a request, so a cluster whose metrics nobody reads pays
// nothing. The package does not use metrics-server's libraries, because that
// module would raise the versions of modules that Kubernetes is tested with.
//
// Package procstats measures; this package does not.
package usage
