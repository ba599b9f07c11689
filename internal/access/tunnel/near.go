package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// Tunnel is the near end of an open tunnel.
type Tunnel struct {
	Answer      Answer
	Credentials Credentials

	session *yamux.Session
	done    chan struct{}
	mu      sync.Mutex
	reason  string
}

// Open greets the far end over the stream, and returns once the far end has found a
// cluster. A *Refusal is an error from the far end. io.EOF means that the stream
// ended before an answer. The tunnel closes the stream.
func Open(ctx context.Context, stream io.ReadWriteCloser, request Request) (*Tunnel, error) {
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer stop()
	t, err := open(stream, request)
	if err != nil {
		stream.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	return t, nil
}

func open(stream io.ReadWriteCloser, request Request) (*Tunnel, error) {
	reader := bufio.NewReader(stream)
	if err := skipTo(reader, opening, openingLimit); err != nil {
		return nil, err
	}
	key, err := newSealKey()
	if err != nil {
		return nil, err
	}
	request.Protocol, request.Key = Protocol, key.PublicKey().Bytes()
	session, err := yamux.Client(buffered{reader, stream}, settings())
	if err != nil {
		return nil, fmt.Errorf("start the tunnel's multiplexer: %w", err)
	}
	t := &Tunnel{session: session, done: make(chan struct{})}
	control, err := session.Open()
	if err != nil {
		return nil, fmt.Errorf("greet the far end of the tunnel: %w", err)
	}
	if err := json.NewEncoder(control).Encode(request); err != nil {
		return nil, fmt.Errorf("greet the far end of the tunnel: %w", err)
	}
	answers := newDecoder(control)
	if err := answers.Decode(&t.Answer); err != nil {
		return nil, errors.Join(fmt.Errorf("read the answer of the tunnel's far end: %w", err), session.Close())
	}
	switch {
	case t.Answer.Refusal != nil:
		err = t.Answer.Refusal
	case t.Answer.Protocol != Protocol:
		err = fmt.Errorf("the far end is berth %s, which speaks version %d of the tunnel's protocol; berth %s here speaks %d", t.Answer.Version, t.Answer.Protocol, request.Version, Protocol)
	default:
		t.Credentials, err = decrypt(key, t.Answer.Sealed)
	}
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	go t.attend(answers)
	return t, nil
}

// attend waits for the end of the tunnel and records its reason.
func (t *Tunnel) attend(answers *json.Decoder) {
	var last farewell
	if answers.Decode(&last) == nil {
		t.mu.Lock()
		t.reason = last.Reason
		t.mu.Unlock()
	}
	_ = t.session.Close() // the far end waits for this
	close(t.done)
}

// Dial opens a connection to the cluster's API server.
func (t *Tunnel) Dial() (net.Conn, error) { return t.session.Open() }

// Ping reports whether the far end answers within a time.
func (t *Tunnel) Ping(within time.Duration) bool {
	answered := make(chan error, 1)
	go func() {
		_, err := t.session.Ping()
		answered <- err
	}()
	select {
	case err := <-answered:
		return err == nil
	case <-time.After(within):
		return false
	}
}

// Done returns a channel that is closed when the tunnel has ended.
func (t *Tunnel) Done() <-chan struct{} { return t.done }

// Ended reports whether the tunnel has stopped carrying connections. Done is closed
// soon after.
func (t *Tunnel) Ended() bool { return t.session.IsClosed() }

// Reason returns the far end's reason for the end, or "" if it gave none.
func (t *Tunnel) Reason() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reason
}

// Close ends the tunnel and all its connections. It can be called twice.
func (t *Tunnel) Close() error { return t.session.Close() }

// buffered is a stream whose beginning was read into a buffer.
type buffered struct {
	*bufio.Reader
	io.WriteCloser
}

func (b buffered) Read(p []byte) (int, error) { return b.Reader.Read(p) }

// skipTo reads past the first occurrence of mark.
func skipTo(reader *bufio.Reader, mark string, limit int) error {
	var seen []byte
	for len(seen) < limit {
		next, err := reader.ReadByte()
		if err != nil {
			return err
		}
		seen = append(seen, next)
		if next == mark[len(mark)-1] && bytes.HasSuffix(seen, []byte(mark)) {
			return nil
		}
	}
	return fmt.Errorf("find the far end of the tunnel: the step printed %d bytes of something else", limit)
}
