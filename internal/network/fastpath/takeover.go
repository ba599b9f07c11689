package fastpath

import (
	"slices"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// A Switch that dies leaves its state and its descriptors. Another process, the holder,
// shares its table of descriptors and does nothing else. So a successor finds all
// unanswered calls and undelivered connections, and continues with them.

// succeed takes over from a predecessor if there was one.
func (s *Switch) succeed() error {
	old := newPredecessor(s.state.inherited())
	defer old.close()
	for _, r := range old.records {
		if r.kind == kindFDHolder {
			s.fdHolder.record = r
		}
	}
	// Records have the old numbers until all new ones are known.
	fetched := make([]fetchedRecord, 0, len(old.records))
	for _, r := range old.records {
		fetched = append(fetched, old.fetch(r))
	}
	if !old.lost() {
		var err error
		if s.orphans, err = old.orphans(s.hostNetwork, s.config.Containers); err != nil {
			s.log.Error("connections that were being accepted are lost", "err", err)
		}
	}
	if err := s.fdHolder.start(); err != nil {
		return err
	}
	listeners, accepted := map[int32]int32{}, map[int32]bool{}
	for _, f := range fetched {
		switch f.r.kind {
		case kindContainer:
			listeners[f.r.fd] = f.fd
		case kindCall:
			accepted[f.r.bell] = true
		}
	}
	for _, f := range fetched {
		if f.r.kind == kindParked && accepted[f.r.fd] {
			// It was about to be given to a caller.
			sock.CloseAll(int(f.fd))
			f.fd = 0
		}
		if f.r.kind == kindCall {
			f.fd = listeners[f.r.fd]
		}
		if f.r.kind != kindFDHolder {
			f.r.fd, f.r.bell, f.r.old = f.fd, f.bell, f.old
		}
	}
	old.kill()
	return s.adoptRecords(old.records)
}

// adoptRecords rebuilds the Switch from a predecessor's records.
func (s *Switch) adoptRecords(records []*record) error {
	s.sockets.adopt(records)
	containers := map[int32]*container{}
	for _, r := range records {
		switch {
		case r.kind == kindSticky:
			s.outbound.affinity.adopt(r)
		case r.kind == kindContainer && r.fd == 0:
			if pod := r.local.addrPort().Addr(); !slices.Contains(s.lost, pod) {
				s.lost = append(s.lost, pod)
			}
			s.state.put(r)
		case r.kind == kindContainer:
			c, err := s.adopt(r)
			if err != nil {
				return err
			}
			containers[r.fd] = c
		}
	}
	for _, r := range records {
		switch r.kind {
		case kindParked:
			s.inbound.adopt(r)
		case kindCall:
			c := containers[r.fd]
			if c == nil || r.call.ID == 0 {
				sock.CloseAll(int(r.bell))
				s.state.put(r)
				continue
			}
			s.resumed = append(s.resumed, &trap{s: s.shared, from: c, record: r, thread: -1})
		}
	}
	if len(s.lost) > 0 {
		s.log.Error("the process that held the descriptors of connections was killed, too: these pods cannot connect any more", "pods", s.lost)
	}
	return nil
}
