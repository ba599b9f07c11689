// Package filter returns the seccomp program of a pod's processes. The program selects the
// calls that the kernel passes to package fastpath, allows or refuses. The package does not
// install the program.
package filter

import (
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data. Arguments are 64 bits wide. The filter examines their
// lower half, which is first on little-endian machines.
const (
	OffsetCall = 0
	offsetArch = 4
	OffsetArgs = 16
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

// Rules selects the calls that a filter traps.
type Rules struct {
	// Alone is set in a cluster of one node: no Switch makes connections to its pods, so
	// the kernel can perform accept.
	Alone bool
	// Memory is set if sysinfo(2) is answered with the container's memory.
	Memory bool
}

// New returns the seccomp program of a pod's processes. The kernel runs it beside the
// pod's own profile, whose refusals have priority. Programs of another architecture are
// restricted only in calls that can reach a network. A call that would install another
// filter with a listener, which the kernel refuses, is trapped only to log it.
func New(r Rules) Program {
	var p Program
	p.Load(offsetArch)
	native := p.unless(Arch)
	p.Load(OffsetCall)
	for _, call := range foreignCalls() {
		p.When(call, unix.SECCOMP_RET_USER_NOTIF) // to be refused and reported
	}
	p.End(unix.SECCOMP_RET_ALLOW)
	p.here(native)
	p.Load(OffsetCall)
	p.whenAtLeast(FirstForeignCall, Refuse(unix.ENOSYS))
	p.whenFlag(unix.SYS_SECCOMP, 1, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, unix.SECCOMP_RET_USER_NOTIF)
	for _, call := range trappedCalls(r.Alone) {
		p.When(call, unix.SECCOMP_RET_USER_NOTIF)
	}
	if r.Memory {
		p.When(unix.SYS_SYSINFO, unix.SECCOMP_RET_USER_NOTIF)
	}
	for _, call := range ringCalls() {
		p.When(call, Refuse(unix.ENOSYS))
	}
	for call, argument := range fastOpeners() {
		p.whenFlag(call, argument, unix.MSG_FASTOPEN, Refuse(unix.EOPNOTSUPP))
	}
	p.End(unix.SECCOMP_RET_ALLOW)
	return p
}

// Refuse returns the verdict that makes a call fail.
func Refuse(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }

// Program is a filter in classic BPF.
type Program []unix.SockFilter

// add adds an instruction. A jump skips whenFalse instructions if its condition is false.
func (p *Program) add(code uint16, k uint32, whenFalse uint8) {
	*p = append(*p, unix.SockFilter{Code: code, K: k, Jf: whenFalse})
}

// Load loads a word of struct seccomp_data.
func (p *Program) Load(offset uint32) { p.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset, 0) }

// End ends with a verdict.
func (p *Program) End(verdict uint32) { p.add(unix.BPF_RET|unix.BPF_K, verdict, 0) }

// When ends with a verdict if the loaded word has a value.
func (p *Program) When(value, verdict uint32) {
	p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, value, 1)
	p.End(verdict)
}

func (p *Program) whenAtLeast(value, verdict uint32) {
	p.add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, value, 1)
	p.End(verdict)
}

// here makes the next instruction the target of a jump of unless.
func (p *Program) here(jump int) { (*p)[jump].Jt = uint8(len(*p) - jump - 1) }

// whenFlag ends with v if an argument of call has a flag, and otherwise allows the call.
func (p *Program) whenFlag(call uint32, argument int, flag, v uint32) {
	p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, call, 4)
	p.Load(OffsetArgs + 8*uint32(argument))
	p.add(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, flag, 1)
	p.End(v)
	p.End(unix.SECCOMP_RET_ALLOW)
}

// unless adds a jump and returns its index. The program continues with the next instruction
// if the loaded word differs from value, and otherwise where here sets the jump's target.
func (p *Program) unless(value uint32) (jump int) {
	p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, value, 0)
	return len(*p) - 1
}
