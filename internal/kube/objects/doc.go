// Package objects selects the objects in etcd that outlive a cluster, and
// changes them for the next cluster. It reads and writes no store.
package objects
