// Package node is the role that makes a host a Kubernetes node: kubelet,
// kube-proxy in nftables mode and the provisioner of node-local volumes, in one
// process inside the sandbox. It turns a cluster.Plan into the configuration of
// these components of Kubernetes, and replaces dependencies of theirs that assume root,
// cgroups or programs of the host. Namespaces, network links and keys (package
// sandbox) and the container runtime do not belong here.
//
// Read node.go first: it starts everything else. kubelet.go, config.go,
// containers.go and runtime.go hold the kubelet; the prompt*.go files remove its
// polling delays. proxy.go, policy.go and servicesender.go hold Services and
// network policies; volumes.go and shared.go the provisioners.
package node
