package fastpath

import (
	"slices"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/filter"
)

// without implements checks and omits the selected ones.
type without struct {
	Disconnect, Reconnect, Listen, Seal, Source, Namespace bool
}

func (w without) refuses(call int) bool {
	switch call {
	case callDisconnect:
		return !w.Disconnect
	case unix.SYS_CONNECT:
		return !w.Reconnect
	default:
		return !w.Listen
	}
}

func (w without) trusts(err error, key []byte) bool {
	return enforced{}.trusts(err, key) || w.Seal && key != nil
}

func (w without) owns(from, owner int) bool { return enforced{}.owns(from, owner) || w.Source }

func (w without) mayRing(parked int32) bool { return enforced{}.mayRing(parked) || w.Namespace }

func (w without) namespace(network uint64) uint64 {
	if w.Namespace {
		return 0
	}
	return network
}

// allowed are calls that a filter of an attack allows, unlike that of a pod.
type allowed struct {
	FastOpen, Foreign, Rings bool
}

// filter returns the filter of a pod without the rules for these calls.
func (a allowed) filter(r filter.Rules) []unix.SockFilter {
	p := filter.New(r)
	rings := []uint32{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER}
	native := slices.IndexFunc(p, func(i unix.SockFilter) bool { return i.K == filter.Arch })
	start := native + 1 + int(p[native].Jt)
	for i := 1; i < len(p); i++ {
		test, end := p[i-1], &p[i]
		switch {
		case end.Code != unix.BPF_RET|unix.BPF_K:
		case a.FastOpen && test.K == unix.MSG_FASTOPEN && end.K == filter.Refuse(unix.EOPNOTSUPP),
			a.Rings && slices.Contains(rings, test.K) && end.K == filter.Refuse(unix.ENOSYS),
			a.Foreign && i < start && end.K == unix.SECCOMP_RET_USER_NOTIF:
			end.K = unix.SECCOMP_RET_ALLOW
		}
	}
	return p
}
