package linux

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	// maxPacket bounds one message, in bytes. The largest messages contain command lines,
	// or the paths of an image's layers.
	maxPacket = 64 << 10
	// MaxPacketFiles bounds the descriptors beside one message.
	MaxPacketFiles = 16
)

// SendPacket sends a message, as JSON, with descriptors.
func SendPacket(conn *net.UnixConn, message any, files ...*os.File) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(data) > maxPacket {
		return fmt.Errorf("message of %d bytes is longer than %d", len(data), maxPacket)
	}
	var rights []byte
	if len(files) > 0 {
		fds, err := descriptors(files)
		if err != nil {
			return err
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(data, rights, nil)
	runtime.KeepAlive(files)
	return err
}

// descriptors returns the files' numbers without File.Fd, which would switch a
// non-blocking descriptor to blocking, for every process that shares it.
func descriptors(files []*os.File) ([]int, error) {
	var fds []int
	for _, file := range files {
		raw, err := file.SyscallConn()
		if err != nil {
			return nil, fmt.Errorf("pass %s: %w", file.Name(), err)
		}
		if err := raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil {
			return nil, fmt.Errorf("pass %s: %w", file.Name(), err)
		}
	}
	return fds, nil
}

// ReceivePacket receives a message. It returns io.EOF when the other end is closed.
// With another error it returns no files.
func ReceivePacket(conn *net.UnixConn, message any) ([]*os.File, error) {
	data := make([]byte, maxPacket)
	oob := make([]byte, unix.CmsgSpace(4*MaxPacketFiles))
	n, oobn, flags, _, err := conn.ReadMsgUnix(data, oob)
	if err != nil {
		if errors.Is(err, unix.ECONNRESET) {
			return nil, io.EOF
		}
		return nil, err
	}
	if n == 0 && oobn == 0 {
		return nil, io.EOF
	}
	files, err := parseRights(oob[:oobn])
	switch {
	case err != nil:
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = fmt.Errorf("receive %T: longer than %d bytes, or more than %d descriptors", message, maxPacket, MaxPacketFiles)
	default:
		err = json.Unmarshal(data[:n], message)
	}
	if err != nil {
		CloseAll(files)
		return nil, err
	}
	return files, nil
}

// CloseAll closes files, and ignores errors.
func CloseAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}

// parseRights returns the passed files. With an error, it returns the files before the
// malformed message.
func parseRights(oob []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse control message: %w", err)
	}
	var files []*os.File
	for _, message := range messages {
		fds, err := unix.ParseUnixRights(&message)
		if err != nil {
			return files, fmt.Errorf("parse passed descriptors: %w", err)
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}
