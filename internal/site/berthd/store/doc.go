// Package store keeps in etcd the state that all nodes share: allocations of addresses, names,
// and which hosts there are. What a node does with this state does not belong here.
//
// Read connection.go and store.go first. allocate.go allocates addresses, and routed.go where each
// node has its own subnet. publish.go and names.go write addresses from plugins and names.
// listing.go reads and watches, lease.go keeps what lives with this host, queue.go orders writers
// that compete, refusal.go records why a connection was refused, keys.go has the
// keys, and roles.go who may use them.
package store
