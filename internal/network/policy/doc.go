// Package policy decides which connections the NetworkPolicies of a cluster permit.
// Compile turns the objects of the API into a State, which is plain data. Permits
// answers for one connection, and Ruleset renders the State for the packet filter of
// a node's kernel. A test proves that both give the same answers. Watch keeps a State
// up to date.
//
// Shares renders rules of the same kind, which bound what one pod gets of conntrack and of
// the node's name server.
//
// The package neither handles packets nor runs nft.
package policy
