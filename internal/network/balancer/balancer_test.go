package balancer

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

const timeout = 20 * time.Second

// fakes holds servers that greet with their names, as long as they are up.
type fakes struct {
	t  *testing.T
	mu sync.Mutex
	// up holds true for the name of each server that is up. Other servers neither answer
	// nor accept connections.
	up    map[string]bool
	conns map[string][]net.Conn
}

func newFakes(t *testing.T, up ...string) *fakes {
	f := &fakes{t: t, up: map[string]bool{}, conns: map[string][]net.Conn{}}
	for _, name := range up {
		f.up[name] = true
	}
	return f
}

func (f *fakes) set(name string, up bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.up[name] = up
}

func (f *fakes) check(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.up[name] {
		return errors.New("down")
	}
	return nil
}

func (f *fakes) dial(ctx context.Context, name string) (net.Conn, error) {
	if err := f.check(ctx, name); err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	f.mu.Lock()
	f.conns[name] = append(f.conns[name], theirs)
	f.mu.Unlock()
	go func() { _, _ = theirs.Write([]byte(name)) }()
	return ours, nil
}

// start runs a balancer over the fakes and returns how to connect to it.
func (f *fakes) start(names ...string) (connect func() net.Conn) {
	f.t.Helper()
	return f.startWith(Config{Servers: names, Check: f.check, Dial: f.dial, Period: time.Millisecond})
}

func (f *fakes) startWith(cfg Config) (connect func() net.Conn) {
	f.t.Helper()
	b, err := New(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	running.Go(func() { b.Run(ctx) })
	running.Go(func() {
		if err := b.Serve(ctx, listener); err != nil {
			f.t.Error(err)
		}
	})
	f.t.Cleanup(func() { cancel(); running.Wait() })
	return func() net.Conn {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(timeout))
		return conn
	}
}

// greeting returns the name of the server at the other end, or "" if the connection
// ends without one.
func greeting(conn net.Conn) string {
	name := make([]byte, 1)
	if _, err := io.ReadFull(conn, name); err != nil {
		return ""
	}
	return string(name)
}

// reaches connects until the server with the name is at the other end.
func reaches(t *testing.T, connect func() net.Conn, name string) net.Conn {
	t.Helper()
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		conn := connect()
		if greeting(conn) == name {
			return conn
		}
		conn.Close()
	}
	t.Fatalf("no connection reaches server %s", name)
	return nil
}

func TestPreferredServerIsUsed(t *testing.T) {
	f := newFakes(t, "a", "b", "c")
	if got := greeting(f.start("b", "c", "a")()); got != "b" {
		t.Errorf("connected to %q", got)
	}
}

func TestConnectionsWaitForServer(t *testing.T) {
	f := newFakes(t)
	conn := f.start("a", "b")()
	f.set("b", true)
	if got := greeting(conn); got != "b" {
		t.Errorf("connected to %q", got)
	}
}

// A server that listens before it can answer must not keep others waiting.
func TestSilentServerIsSkipped(t *testing.T) {
	f := newFakes(t, "b")
	check := func(ctx context.Context, name string) error {
		if name == "a" {
			<-ctx.Done()
		}
		return f.check(ctx, name)
	}
	connect := f.startWith(Config{Servers: []string{"a", "b", "c"}, Check: check, Dial: f.dial, Timeout: time.Hour})
	if got := greeting(connect()); got != "b" {
		t.Errorf("connected to %q", got)
	}
}

func TestLossMovesNewConnectionsAndEndsOldOnes(t *testing.T) {
	f := newFakes(t, "a", "b")
	connect := f.start("a", "b")
	old := reaches(t, connect, "a")
	f.set("a", false)
	if got := greeting(old); got != "" {
		t.Errorf("the old connection goes on, with %q", got)
	}
	kept := reaches(t, connect, "b")
	f.set("a", true)
	reaches(t, connect, "a")
	if _, err := kept.Write([]byte("x")); err != nil {
		t.Errorf("a connection to the other server was ended when the preferred one was back: %v", err)
	}
}

// Connections to a server that was in use before, and which dies later, must not
// hang over a network that swallows their packets.
func TestLossEndsOpenConnections(t *testing.T) {
	f := newFakes(t, "b")
	connect := f.start("a", "b")
	stayed := reaches(t, connect, "b")
	f.set("a", true)
	reaches(t, connect, "a")
	f.set("b", false)
	if got := greeting(stayed); got != "" {
		t.Errorf("the connection goes on, with %q", got)
	}
}

func TestLastServerStays(t *testing.T) {
	f := newFakes(t, "a")
	connect := f.start("a", "b")
	conn := reaches(t, connect, "a")
	f.set("a", false)
	// Looks of the balancer that all fail.
	for range 3 {
		connect().Close()
	}
	f.mu.Lock()
	theirs := f.conns["a"][0]
	f.mu.Unlock()
	go func() { _, _ = theirs.Write([]byte("!")) }()
	if got := greeting(conn); got != "!" {
		t.Errorf("the connection was ended although no other server answers: %q", got)
	}
}

func TestBytesPassInBothDirections(t *testing.T) {
	f := newFakes(t, "a")
	conn := reaches(t, f.start("a"), "a")
	f.mu.Lock()
	theirs := f.conns["a"][0]
	f.mu.Unlock()
	go func() { _, _ = io.Copy(theirs, theirs) }()
	text := []byte("hello")
	if _, err := conn.Write(text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != string(text) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("a balancer without servers was made")
	}
}
