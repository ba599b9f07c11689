// Package linux wraps the kernel interfaces that berth uses in typed calls.
// Their errors name the action and the object. The package makes no decisions
// and imports no other package of berth.
//
// The files do not build on each other. By topic:
//
//   - processes: process.go, stat.go, pidfd.go, descendants.go, thread.go, signals.go, usage.go,
//     program.go
//   - descriptors: packets.go, pipe.go, socketpair.go, memfd.go, fdholder.go,
//     fdtable.go, compare.go
//   - seccomp: notification.go, seccomp.go, sysinfo.go, fakechown.go, keys.go
//   - networks: tun.go, messages.go, netlink.go, sockdiag.go
//   - mounts: mount.go
package linux
