package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// The few bits of a DNS message that a relay has to know (RFC 1035, 4.1.1).
const (
	dnsHeader      = 12
	dnsResponse    = 0x80 // in the third byte
	dnsRecursion   = 0x80 // in the fourth byte
	dnsCode        = 0x0f // in the fourth byte
	codeServerFail = 2
	codeNotImpl    = 4
	codeRefused    = 5
)

// answerQuery relays a query that a pod sent to the gateway by UDP. Queries by
// TCP are ordinary connections to a resolver, see target. Messages are relayed
// as they are, so everything that the host's resolver can do works, and a
// truncated answer sends the pod to TCP.
func (e *engine) answerQuery(ctx context.Context, pod netip.AddrPort, query []byte) {
	if len(query) < dnsHeader || query[2]&dnsResponse != 0 {
		e.Counters.dropped.Add(1)
		return
	}
	if !e.dns.shares.Take(pod.Addr()) {
		// Silence makes the pod repeat the query.
		e.Counters.overflow.Add(1)
		whose := fmt.Sprintf("pod %v", pod.Addr())
		if pod.Addr() == e.Node {
			whose = fmt.Sprintf("node %v, whose CoreDNS asks for the pods", pod.Addr())
		}
		e.warnOnce(fmt.Sprintf("dropped DNS queries of %s: too many of them wait for the host's name servers", whose))
		return
	}
	if !e.workers.start() {
		e.dns.shares.Give(pod.Addr())
		return
	}
	query = slices.Clone(query)
	e.Counters.dns.enter()
	go func() {
		defer e.workers.group.Done()
		defer e.Counters.dns.leave()
		defer e.dns.shares.Give(pod.Addr())
		answer := e.dns.ask(ctx, query)
		if answer == nil {
			e.Counters.failed.Add(1)
			e.Log.Debug("no resolver of the host answered", "pod", pod)
			answer = serverFailure(query)
		}
		if ctx.Err() == nil {
			e.sendUDP(netip.AddrPortFrom(e.Gateway, dnsPort), pod, answer)
		}
	}()
}

// ask returns the first useful answer of the host's resolvers. If there is none, it
// returns the last refusal or failure that a resolver sent, or nil.
func (r *resolver) ask(ctx context.Context, query []byte) []byte {
	config := r.read()
	var worse []byte
	for range max(config.Attempts, 1) {
		for i, server := range config.Servers {
			answer, err := exchange(ctx, server, config.Timeout, query)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				continue
			}
			switch answer[3] & dnsCode {
			case codeServerFail, codeNotImpl, codeRefused:
				worse = answer
				continue
			}
			if i > 0 {
				r.answered(server)
			}
			return answer
		}
		if worse != nil {
			return worse
		}
	}
	return nil
}

// exchange asks one server. Each query has its own socket with a random port, which
// protects against forged answers (RFC 5452).
func exchange(ctx context.Context, server netip.AddrPort, timeout time.Duration, query []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", server.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // fails only when closed
	defer stop()
	if _, err := conn.Write(query); err != nil {
		return nil, err
	}
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var answer []byte
	var failure error
	// Hold a buffer only once a datagram has arrived, because servers may be slow.
	err = raw.Read(func(fd uintptr) bool {
		buffer := datagramBuffers.Get().(*[datagram]byte)
		defer datagramBuffers.Put(buffer)
		for {
			n, err := unix.Read(int(fd), buffer[:])
			switch {
			case err == unix.EINTR:
			case err == unix.EAGAIN:
				return false
			case err != nil:
				failure = err
				return true
			case n >= dnsHeader && binary.BigEndian.Uint16(buffer[:]) == binary.BigEndian.Uint16(query) && buffer[2]&dnsResponse != 0:
				answer = slices.Clone(buffer[:n])
				return true
			}
		}
	})
	return answer, errors.Join(err, failure)
}

// serverFailure returns the answer when no server answers: the query with the code
// SERVFAIL.
func serverFailure(query []byte) []byte {
	answer := slices.Clone(query)
	answer[2] |= dnsResponse
	answer[3] = dnsRecursion | codeServerFail
	return answer
}
