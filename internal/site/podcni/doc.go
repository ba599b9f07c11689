// Package podcni connects pods with the CNI plugins that a site has chosen, instead of with
// internal/site/vxlan. Its caller passes the namespaces of all pods to connect, and the package
// calls the plugins until the state matches. It knows no jobs, etcd or namespaces of others.
// The plugins do not belong here.
package podcni
