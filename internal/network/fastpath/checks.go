package fastpath

// checks keeps pods and other jobs away from the host's sockets. Attack tests
// replace it, to show that every check is needed.
type checks interface {
	// refuses reports whether a call on a switched socket is refused. The call is
	// unix.SYS_LISTEN, unix.SYS_CONNECT, or callDisconnect.
	refuses(call int) bool
	// trusts reports whether a preamble may be used. err is the result of checking its
	// seal. key is nil if the preamble names no node of the job.
	trusts(err error, key []byte) bool
	// owns reports whether node from owns a pod of node owner.
	owns(from, owner int) bool
	// mayRing reports whether a connection that a pod accepts may come from a bell,
	// while the given number of connections is parked for the pod.
	mayRing(parked int32) bool
	// namespace returns the cookie of a network namespace if it is a part of a bell's key.
	namespace(network uint64) uint64
}

// callDisconnect stands for a connect to AF_UNSPEC, which ends a socket's connection.
const callDisconnect = -1

// enforced implements the checks of every Switch except in attack tests.
type enforced struct{}

func (enforced) refuses(int) bool                { return true }
func (enforced) trusts(err error, _ []byte) bool { return err == nil }
func (enforced) owns(from, owner int) bool       { return from == owner }
func (enforced) mayRing(parked int32) bool       { return parked > 0 }
func (enforced) namespace(network uint64) uint64 { return network }
