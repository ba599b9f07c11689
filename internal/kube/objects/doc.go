// Package objects says which of a cluster's objects outlive it, as they are in
// etcd, and how they are changed for the next cluster. It reads and writes no
// store.
package objects
