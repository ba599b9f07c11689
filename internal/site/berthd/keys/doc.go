// Package keys makes the certificates of etcd and of the nodes, and etcd's roles for the nodes.
// What the keys in etcd mean does not belong here: the package store lists the keys for each node.
//
// authority.go issues certificates, directory.go keeps them in files, and roles.go grants and
// withdraws roles.
package keys
