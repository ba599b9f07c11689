package overlay

import (
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// socketBuffer is asked for, in bytes; the host's rmem_max and wmem_max bound
// what is got.
const socketBuffer = 8 << 20

// udpCarrier is one socket.
type udpCarrier struct {
	*udpSender
	*udpReceiver
	conn    *net.UDPConn
	stopped atomic.Bool
}

func newUDPCarrier(queue int, conn *net.UDPConn, tables *atomic.Pointer[table], counts *counts, log *slog.Logger) (*udpCarrier, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("use socket %s: %w", conn.LocalAddr(), err)
	}
	// A smaller buffer, or datagrams one by one, are slower and no more.
	_ = conn.SetReadBuffer(socketBuffer)
	_ = conn.SetWriteBuffer(socketBuffer)
	err = raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
			log.Info("the kernel hands out datagrams one by one; the network between nodes is slower", "error", err)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("use socket %s: %w", conn.LocalAddr(), err)
	}
	c := &udpCarrier{conn: conn}
	c.udpSender = newUDPSender(queue, raw, counts, &c.stopped, log)
	c.udpReceiver = newUDPReceiver(raw, tables, counts, &c.stopped)
	return c, nil
}

func (c *udpCarrier) stop() {
	c.stopped.Store(true)
	_ = c.conn.SetDeadline(time.Unix(1, 0)) // fails only when closed
}
