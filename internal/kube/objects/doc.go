// Package objects selects the objects in etcd that outlive a cluster, and changes
// them for the next cluster. It accesses no store.
package objects
