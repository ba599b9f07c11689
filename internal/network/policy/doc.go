// Package policy says which connections the NetworkPolicies of a cluster
// permit. Compile turns the objects of the API into a State, which is plain
// data: Permits asks it about one connection, Ruleset renders it for the packet
// filter of a node's kernel. Both answers are the same, and a test holds them
// to that. Watch keeps a State up to date.
//
// What a packet looks like, and who runs nft, does not belong here.
package policy
