// Package cluster is berth's vocabulary: what a user asks for (Spec), and the
// pure plan that follows from it and from what the allocation offers (Plan):
// names, addresses, paths, sizes. Every other package reads it; it reads none
// of them, touches no file, opens no socket and makes no system call.
package cluster
