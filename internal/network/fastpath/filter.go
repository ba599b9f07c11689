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

// trapped are the calls that a Switch is asked about.
//
// listen is among them only for the sockets that are switched already.
func trappedCalls(alone bool) []uint32 {
	calls := []uint32{unix.SYS_CONNECT, unix.SYS_LISTEN, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME}
	if alone {
		return calls
	}
	return append(calls, unix.SYS_ACCEPT, unix.SYS_ACCEPT4)
}

// fastOpeners connect a socket when they have the flag MSG_FASTOPEN in the
// argument.
func fastOpeners() map[uint32]int {
	return map[uint32]int{unix.SYS_SENDTO: 3, unix.SYS_SENDMSG: 2, unix.SYS_SENDMMSG: 3}
}

// ringCalls do what no filter sees.
func ringCalls() []uint32 {
	return []uint32{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER}
}

// rules says what a filter leaves out.
type rules struct {
	// alone: connections of other pods come from no Switch, so accept is the
	// kernel's.
	alone bool
	// memory: sysinfo(2) is answered with the container's memory.
	memory bool
}

// filter is the seccomp program of a pod's processes, beside the profile that
// the pod has: the kernel asks both, and a refusal counts more than a question.
// Programs of another architecture than the kernel's own are left alone, but for
// what could reach a network. A filter with a listener of the pod's own is
// looked at only to be told of: the kernel refuses a second one.
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

// program is classic BPF in the making.
type program []unix.SockFilter

// add adds an instruction, and how many a jump skips whose condition is false.
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

// whenFlag ends where a call has a flag in an argument, and allows the call
// where it has not.
func (p *program) whenFlag(call uint32, argument int, flag, v uint32) {
	p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, call, 4)
	p.load(offsetArgs + 8*uint32(argument))
	p.add(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, flag, 1)
	p.end(v)
	p.end(unix.SECCOMP_RET_ALLOW)
}

// unless goes on where what was loaded is not value, and otherwise where the
// returned jump is said to lead.
func (p *program) unless(value uint32) (jump int) {
	p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, value, 0)
	return len(*p) - 1
}
