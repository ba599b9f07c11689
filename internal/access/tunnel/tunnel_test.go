package tunnel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// far starts the far end, with a server behind it that returns its input in
// capitals. It returns the near end's stream.
func far(t *testing.T, ended chan struct{}, find find) net.Conn {
	t.Helper()
	near, other := net.Pipe()
	if find == nil {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		go upper(listener)
		find = func(context.Context, Request) (*Cluster, error) {
			return &Cluster{
				Name: "job-1-0-1", Ended: ended,
				Credentials: Credentials{Authority: []byte("authority"), Cert: []byte("cert"), Key: []byte("very secret")},
				Dial: func(ctx context.Context) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
				},
			}, nil
		}
	}
	result := make(chan error, 1)
	go func() { result <- Serve(t.Context(), other, Answer{Node: "n1", Version: "v2"}, find) }()
	t.Cleanup(func() {
		near.Close()
		await(t, result)
	})
	return near
}

func await[T any](t *testing.T, result <-chan T) {
	t.Helper()
	select {
	case <-result:
	case <-time.After(10 * time.Second):
		t.Error("it does not end")
	}
}

// upper reads a connection to its end before it answers, so it needs half-closed
// connections.
func upper(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer connection.Close()
			content, _ := io.ReadAll(connection)
			_, _ = connection.Write(bytes.ToUpper(content))
		}()
	}
}

// recorder keeps all bytes that pass.
type recorder struct {
	net.Conn
	seen bytes.Buffer
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.seen.Write(p[:n])
	return n, err
}

func TestConnectionsPassAndKeyIsSealed(t *testing.T) {
	stream := far(t, make(chan struct{}), nil)
	record := &recorder{Conn: stream}
	tunnel, err := Open(t.Context(), record, Request{Job: "1", Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	if tunnel.Answer.Node != "n1" || string(tunnel.Credentials.Key) != "very secret" {
		t.Errorf("answer %+v, credentials %s", tunnel.Answer, tunnel.Credentials.Key)
	}
	if !tunnel.Ping(10 * time.Second) {
		t.Error("no answer to a ping")
	}
	large := strings.Repeat("abcdefgh", 1<<18) // larger than any window
	for range 3 {
		connection, err := tunnel.Dial()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = io.WriteString(connection, large)
			connection.Close() // closes only this direction
		}()
		content, err := io.ReadAll(connection)
		if err != nil || string(content) != strings.ToUpper(large) {
			t.Fatalf("%d bytes came back, want %d: %v", len(content), len(large), err)
		}
	}
	if err := tunnel.Close(); err != nil {
		t.Error(err)
	}
	await(t, tunnel.Done())
	if bytes.Contains(record.seen.Bytes(), []byte("secret")) {
		t.Error("the key travelled in clear")
	}
}

func TestEarlierOutputIsSkipped(t *testing.T) {
	near, other := net.Pipe()
	t.Cleanup(func() { near.Close() })
	go func() {
		_, _ = io.WriteString(other, "welcome to the site\n\x00berth\n")
		_ = Serve(t.Context(), other, Answer{}, func(context.Context, Request) (*Cluster, error) {
			return nil, &Refusal{Reason: Elsewhere, Head: "n7", Text: "it is on n7"}
		})
	}()
	_, err := Open(t.Context(), near, Request{})
	var refusal *Refusal
	if !errors.As(err, &refusal) || refusal.Head != "n7" {
		t.Errorf("error %v, want a refusal that names n7", err)
	}
}

func TestClusterEndHasReason(t *testing.T) {
	ended := make(chan struct{})
	stream := far(t, ended, nil)
	tunnel, err := Open(t.Context(), stream, Request{})
	if err != nil {
		t.Fatal(err)
	}
	close(ended)
	await(t, tunnel.Done())
	if tunnel.Reason() != "the cluster has ended" {
		t.Errorf("reason %q", tunnel.Reason())
	}
}

func TestEmptyStreamIsEndOfFile(t *testing.T) {
	near, other := net.Pipe()
	go func() {
		_, _ = io.WriteString(other, "execve: no such file\n")
		other.Close()
	}()
	if _, err := Open(t.Context(), near, Request{}); !errors.Is(err, io.EOF) {
		t.Errorf("error %v, want io.EOF", err)
	}
}

func TestOpeningEndsWithItsContext(t *testing.T) {
	near, _ := net.Pipe()
	cause := errors.New("too slow")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := Open(ctx, near, Request{}); !errors.Is(err, cause) {
		t.Errorf("error %v, want %v", err, cause)
	}
}
