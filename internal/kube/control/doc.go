// Package control is the control role: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler in one process, tuned so that a
// cluster is usable about half a second after exec, and the objects that every
// berth cluster has from the start.
//
// It takes upstream's components as they are and changes only how they are put
// together; what a file changes and why is said at its top. It does not make
// keys, choose addresses or bind ports: those come with the plan, as files
// under its paths and as listeners.
//
// The components keep much of their state in package variables of their own
// (metrics, feature gates, configz), so a process can run the role once.
package control
