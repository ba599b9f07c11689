// Package podcni connects pods by the CNI plugins that a site has chosen, instead of by
// internal/site/vxlan. It knows nothing of jobs, etcd or namespaces: it is given those of
// all pods that shall be connected, and has plugins make that so. Plugins themselves
// do not belong here.
package podcni
