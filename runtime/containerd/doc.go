// Command containerd is containerd v2 with only the plugins that a berth node uses:
// CRI and its dependencies. Every other plugin would cost time at each start, and memory
// during the life of the node.
//
// Read run.go first, which starts the daemon, then plugins.go, which lists its plugins.
// Each of the other files has a plugin of berth, or wraps a plugin of containerd.
package main
