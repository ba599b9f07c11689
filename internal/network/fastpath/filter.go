package fastpath

import (
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data. Arguments are 64 bits wide; what is looked at
// here is in their lower half, on machines that have that first.
const (
	offsetCall = 0
	offsetArch = 4
	offsetArgs = 16
)

// trappedCalls returns the calls that a Switch answers. It includes listen only because
// of sockets that are already switched.
func trappedCalls(alone bool) []uint32 {
	calls := []uint32{unix.SYS_CONNECT, unix.SYS_LISTEN, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME}
	if alone {
		return calls
	}
	return append(calls, unix.SYS_ACCEPT, unix.SYS_ACCEPT4)
}

// fastOpeners returns the calls that connect a socket if the given argument has the flag
// MSG_FASTOPEN.
func fastOpeners() map[uint32]int {
	return map[uint32]int{unix.SYS_SENDTO: 3, unix.SYS_SENDMSG: 2, unix.SYS_SENDMMSG: 3}
}

// ringCalls returns the calls of io_uring, whose operations bypass filters.
func ringCalls() []uint32 {
	return []uint32{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER}
}

// rules selects the calls that a filter traps.
type rules struct {
	// alone is set in a cluster of one node: no Switch makes connections to its pods, so
	// the kernel can perform accept.
	alone bool
	// memory is set if sysinfo(2) is answered with the container's memory.
	memory bool
}

// filter returns the seccomp program of a pod's processes. The kernel runs it beside the
// pod's own profile, whose refusals have priority. Programs of another architecture are
// restricted only in calls that can reach a network. A call that would install another
// filter with a listener, which the kernel refuses, is trapped only to log it.
func filter(r rules) []unix.SockFilter {
	var p program
	p.load(offsetArch)
	native := p.unless(auditArch)
	p.load(offsetCall)
	for _, call := range foreignCalls() {
		p.when(call, unix.SECCOMP_RET_USER_NOTIF) // to be refused and reported
	}
	p.end(unix.SECCOMP_RET_ALLOW)
	p.here(native)
	p.load(offsetCall)
	p.whenAtLeast(firstForeignCall, refuse(unix.ENOSYS))
	p.whenFlag(unix.SYS_SECCOMP, 1, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, unix.SECCOMP_RET_USER_NOTIF)
	for _, call := range trappedCalls(r.alone) {
		p.when(call, unix.SECCOMP_RET_USER_NOTIF)
	}
	if r.memory {
		p.when(unix.SYS_SYSINFO, unix.SECCOMP_RET_USER_NOTIF)
	}
	for _, call := range ringCalls() {
		p.when(call, refuse(unix.ENOSYS))
	}
	for call, argument := range fastOpeners() {
		p.whenFlag(call, argument, unix.MSG_FASTOPEN, refuse(unix.EOPNOTSUPP))
	}
	p.end(unix.SECCOMP_RET_ALLOW)
	return p
}

func refuse(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }

// program builds classic BPF.
type program []unix.SockFilter

// add adds an instruction. A jump skips whenFalse instructions if its condition is false.
func (p *program) add(code uint16, k uint32, whenFalse uint8) {
	*p = append(*p, unix.SockFilter{Code: code, K: k, Jf: whenFalse})
}

func (p *program) load(offset uint32) { p.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset, 0) }
func (p *program) end(verdict uint32) { p.add(unix.BPF_RET|unix.BPF_K, verdict, 0) }
func (p *program) here(jump int)      { (*p)[jump].Jt = uint8(len(*p) - jump - 1) }
func (p *program) when(value, v uint32) {
	p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, value, 1)
	p.end(v)
}

func (p *program) whenAtLeast(value, v uint32) {
	p.add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, value, 1)
	p.end(v)
}

// whenFlag ends with v if an argument of call has a flag, and otherwise allows the call.
func (p *program) whenFlag(call uint32, argument int, flag, v uint32) {
	p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, call, 4)
	p.load(offsetArgs + 8*uint32(argument))
	p.add(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, flag, 1)
	p.end(v)
	p.end(unix.SECCOMP_RET_ALLOW)
}

// unless continues with the next instruction if the loaded value differs from value, and
// otherwise at the place that here sets for the returned jump.
func (p *program) unless(value uint32) (jump int) {
	p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, value, 0)
	return len(*p) - 1
}
