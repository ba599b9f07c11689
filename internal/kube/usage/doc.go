// Package usage serves the metrics API (metrics.k8s.io): how much CPU and memory
// nodes and pods use. kubectl top and HorizontalPodAutoscalers read it.
//
// Upstream's metrics-server is a pod, and asks every kubelet four times a minute
// for as long as it runs. Here the API server answers itself, and asks the
// kubelets when it is asked: a cluster whose metrics nobody reads pays nothing.
// Its libraries are not used because its module would raise the versions of
// others that Kubernetes is tested with.
//
// What a kubelet measures, and how, is not decided here; see package procstats.
package usage
