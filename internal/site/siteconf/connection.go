package siteconf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// Ask sends a message to the berthd whose directory is run, and returns its reply. If the
// reply is an error, Ask returns its reason as an error. The caller closes the files that
// come with the reply: a pod's namespaces, and the lock of a session.
func Ask(ctx context.Context, run string, question Message) (Message, []*os.File, error) {
	path := filepath.Join(run, Socket)
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return Message{}, nil, fmt.Errorf("reach berthd: %w: is it running? systemctl status berthd", err)
	}
	conn := c.(*net.UnixConn)
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := conn.Write(question.Encode()); err != nil {
		return Message{}, nil, fmt.Errorf("ask berthd to %s: %w", question.Verb, err)
	}
	answer, files, err := ReadMessage(conn)
	if err != nil {
		return Message{}, nil, fmt.Errorf("read berthd's answer to %s: %w", question.Verb, errors.Join(err, context.Cause(ctx)))
	}
	if answer.Verb == VerbError {
		return answer, nil, errors.New(answer.Fields["reason"])
	}
	return answer, files, nil
}

// ErrClosed reports that the other side closed the connection without a reply, as
// berthd does when it is replaced or serves too many connections.
var ErrClosed = errors.New("the other side has closed the connection")

// maxDescriptors is the limit for one message: a pod's network and PID namespace, and
// the lock of a session.
const maxDescriptors = 3

// ReadMessage reads one message and its descriptors, which the caller closes. After an error
// there are none.
func ReadMessage(conn *net.UnixConn) (m Message, files []*os.File, err error) {
	defer func() {
		if err != nil {
			linux.CloseAll(files)
			files = nil
		}
	}()
	var text []byte
	buffer := make([]byte, 4096)
	oob := make([]byte, unix.CmsgSpace(4*maxDescriptors))
	for !complete(text) {
		n, oobn, _, _, err := conn.ReadMsgUnix(buffer, oob)
		if oobn > 0 {
			files = append(files, descriptors(oob[:oobn])...)
		}
		if err == nil && n == 0 {
			err = ErrClosed
		}
		// With an error, n may be -1.
		text = append(text, buffer[:max(n, 0)]...)
		if err == nil && len(text) > maxMessage {
			err = fmt.Errorf("longer than %d bytes", maxMessage)
		}
		if err == nil && len(files) > maxDescriptors {
			err = fmt.Errorf("more than %d descriptors", maxDescriptors)
		}
		if err != nil {
			return Message{}, files, err
		}
	}
	m, err = decode(text)
	return m, files, err
}

func descriptors(oob []byte) []*os.File {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "namespace"))
		}
	}
	return files
}
