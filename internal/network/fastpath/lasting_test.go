package fastpath

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// many ADDRESS N: connects one after the other, with a byte there and back.
func many(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	switched := 0
	for i := range n {
		fd, err := newSocket(familyOf(args[0]), 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, sockaddr(args[0], familyOf(args[0]))); err != nil {
			return fmt.Errorf("connect %d: %w", i, err)
		}
		b := []byte{byte(i)}
		if _, err := unix.Write(fd, b); err != nil {
			return fmt.Errorf("send on connection %d: %w", i, err)
		}
		n, err := unix.Read(fd, b)
		if err := returned(n, err, 1); err != nil {
			return fmt.Errorf("receive on connection %d: %w", i, err)
		}
		if b[0] != byte(i) {
			return fmt.Errorf("receive on connection %d: byte %d, not %d", i, b[0], byte(i))
		}
		if isSwitched(fd) {
			switched++
		}
		unix.Close(fd)
		if i%100 == 0 {
			fmt.Println(i)
		}
	}
	fmt.Println("switched", switched)
	return nil
}

// slow ADDRESS: is connected for longer than the life of a Switch.
func slow(args []string) error {
	fd, err := newSocket(familyOf(args[0]), 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(args[0], familyOf(args[0]))); err != nil {
		return err
	}
	fmt.Println("ready")
	for range 300 {
		b := []byte{1}
		if _, err := unix.Write(fd, b); err != nil {
			return err
		}
		n, err := unix.Read(fd, b)
		if err := returned(n, err, 1); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		_, _ = unix.Poll(nil, 1)
	}
	text, err := describe(fd)
	fmt.Println(text)
	return errors.Join(err, unix.Close(fd))
}

// awaitReset ADDRESS: connects, and waits for the reset.
func awaitReset(args []string) error {
	fd, err := switchedSocket(args[0])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if err := await(fd, unix.POLLIN); err != nil {
		return err
	}
	_, err = unix.Read(fd, make([]byte, 1))
	if err := failed(err, unix.ECONNRESET); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}

// keep PORT N: accepts connections, and closes none before it ends.
func keep(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", ":"+args[0])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var kept []net.Conn
	for range n {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		kept = append(kept, conn)
		if _, err := conn.Write([]byte{1}); err != nil {
			return err
		}
	}
	_, err = kept[0].Read(make([]byte, 1)) // for ever
	return err
}

// hold ADDRESS N: connects, and closes nothing before it ends.
func hold(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	for i := range n {
		fd, err := newSocket(familyOf(args[0]), 0)
		if err == nil {
			err = unix.Connect(fd, sockaddr(args[0], familyOf(args[0])))
		}
		if err == nil {
			_, err = unix.Read(fd, make([]byte, 1))
		}
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
	}
	fmt.Println("ready")
	return unix.Pause() // until it is killed
}
