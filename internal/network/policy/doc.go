// Package policy decides which connections the NetworkPolicies of a cluster permit.
// Watch turns the objects of the API into a State, which is plain data, after each change.
// Latest.Permits answers for one connection, and State.Ruleset renders the State for the
// packet filter of a node's kernel. A test proves that both give the same answers.
//
// Shares renders rules of the same kind, which bound what one pod gets of conntrack and of
// the node's name server.
//
// The package neither handles packets nor runs nft.
package policy
