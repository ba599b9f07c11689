// Package node is the role that makes a host a Kubernetes node: kubelet,
// kube-proxy in nftables mode and the provisioner of node-local volumes, in
// one process, inside the sandbox. It turns a cluster.Plan into the upstream
// components' configuration and replaces those of their dependencies that
// assume root, cgroups or programs of the host. What does not belong here:
// making namespaces, links and keys (the sandbox), and the container runtime.
package node
