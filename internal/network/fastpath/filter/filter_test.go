package filter

import (
	"testing"

	"golang.org/x/sys/unix"
)

// call is the system call that a program decides about.
type call struct {
	arch, number uint32
	arguments    [6]uint32
}

// run interprets the instructions that a Program has.
func run(t *testing.T, p Program, c call) uint32 {
	t.Helper()
	var loaded uint32
	for at := 0; at < len(p); at++ {
		i := p[at]
		jump := func(condition bool) {
			if condition {
				at += int(i.Jt)
			} else {
				at += int(i.Jf)
			}
		}
		switch i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			switch i.K {
			case OffsetCall:
				loaded = c.number
			case offsetArch:
				loaded = c.arch
			default:
				loaded = c.arguments[(i.K-OffsetArgs)/8]
			}
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(loaded == i.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(loaded >= i.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(loaded&i.K != 0)
		case unix.BPF_RET | unix.BPF_K:
			return i.K
		default:
			t.Fatalf("instruction %d has code %#x", at, i.Code)
		}
	}
	t.Fatal("the program has no end")
	return 0
}

func TestVerdicts(t *testing.T) {
	const allow, notify = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_USER_NOTIF
	flag := func(argument int, value uint32) (a [6]uint32) {
		a[argument] = value
		return a
	}
	for name, c := range map[string]struct {
		rules Rules
		call  call
		want  uint32
	}{
		"connect":                     {Rules{}, call{Arch, unix.SYS_CONNECT, [6]uint32{}}, notify},
		"accept":                      {Rules{}, call{Arch, unix.SYS_ACCEPT4, [6]uint32{}}, notify},
		"accept of a single node":     {Rules{Alone: true}, call{Arch, unix.SYS_ACCEPT4, [6]uint32{}}, allow},
		"connect of a single node":    {Rules{Alone: true}, call{Arch, unix.SYS_CONNECT, [6]uint32{}}, notify},
		"read":                        {Rules{}, call{Arch, unix.SYS_READ, [6]uint32{}}, allow},
		"sysinfo":                     {Rules{}, call{Arch, unix.SYS_SYSINFO, [6]uint32{}}, allow},
		"sysinfo of limited memory":   {Rules{Memory: true}, call{Arch, unix.SYS_SYSINFO, [6]uint32{}}, notify},
		"io_uring_setup":              {Rules{}, call{Arch, unix.SYS_IO_URING_SETUP, [6]uint32{}}, Refuse(unix.ENOSYS)},
		"sendto":                      {Rules{}, call{Arch, unix.SYS_SENDTO, flag(3, unix.MSG_NOSIGNAL)}, allow},
		"sendto that connects":        {Rules{}, call{Arch, unix.SYS_SENDTO, flag(3, unix.MSG_NOSIGNAL|unix.MSG_FASTOPEN)}, Refuse(unix.EOPNOTSUPP)},
		"sendmsg that connects":       {Rules{}, call{Arch, unix.SYS_SENDMSG, flag(2, unix.MSG_FASTOPEN)}, Refuse(unix.EOPNOTSUPP)},
		"sendmmsg that connects":      {Rules{}, call{Arch, unix.SYS_SENDMMSG, flag(3, unix.MSG_FASTOPEN)}, Refuse(unix.EOPNOTSUPP)},
		"filter without a listener":   {Rules{}, call{Arch, unix.SYS_SECCOMP, flag(1, unix.SECCOMP_FILTER_FLAG_TSYNC)}, allow},
		"filter with a listener":      {Rules{}, call{Arch, unix.SYS_SECCOMP, flag(1, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)}, notify},
		"x32":                         {Rules{}, call{Arch, FirstForeignCall | unix.SYS_CONNECT, [6]uint32{}}, Refuse(unix.ENOSYS)},
		"foreign socketcall":          {Rules{}, call{Arch ^ 1, 102, [6]uint32{}}, notify},
		"foreign io_uring_setup":      {Rules{}, call{Arch ^ 1, unix.SYS_IO_URING_SETUP, [6]uint32{}}, notify},
		"foreign call without socket": {Rules{}, call{Arch ^ 1, 1, [6]uint32{}}, allow},
	} {
		if got := run(t, New(c.rules), c.call); got != c.want {
			t.Errorf("%s: %#x, not %#x", name, got, c.want)
		}
	}
}
