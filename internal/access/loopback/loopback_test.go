package loopback

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

// envConnect makes this program a client that connects there and reads.
const envConnect = "LOOPBACK_TEST_CONNECT"

func TestMain(m *testing.M) {
	if address := os.Getenv(envConnect); address != "" {
		os.Exit(connect(address))
	}
	os.Exit(m.Run())
}

// connect returns 0 if the server greets it, and 3 if the server refuses it.
func connect(address string) int {
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return 3
	}
	content, err := io.ReadAll(conn)
	if err != nil || string(content) != "hello" {
		return 3
	}
	return 0
}

func serve(t *testing.T, address string) (*Listener, chan error) {
	t.Helper()
	listener, err := Listen(netip.MustParseAddrPort(address))
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 16)
	listener.Refused = func(err error) { refused <- err }
	testutil.Serve(t, listener, func(conn net.Conn) { _, _ = io.WriteString(conn, "hello") })
	return listener, refused
}

func client(t *testing.T, listener *Listener, uid int) int {
	t.Helper()
	command := exec.CommandContext(t.Context(), "/proc/self/exe")
	command.Env = []string{envConnect + "=" + listener.Addr().String()}
	if uid != os.Getuid() {
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return command.ProcessState.ExitCode()
}

func TestOwnUserIsAdmitted(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		listener, refused := serve(t, address)
		if code := client(t, listener, os.Getuid()); code != 0 {
			t.Errorf("%s: exit code %d; refused: %v", address, code, nextRefusal(refused))
		}
	}
}

func TestOtherUserIsRefused(t *testing.T) {
	testutil.Require(t, testutil.Root)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		listener, refused := serve(t, address)
		if code := client(t, listener, 65534); code != 3 {
			t.Errorf("%s: exit code %d, want 3", address, code)
		}
		select { // the message comes after the client was refused
		case err := <-refused:
			if !errors.Is(err, errOthers) {
				t.Errorf("%s: refused for %v, want %v", address, err, errOthers)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: nothing is said of the refusal", address)
		}
	}
}

func TestClosedConnectionHasNoOwner(t *testing.T) {
	listener, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	accepted, err := listener.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if err := checkOwner(accepted); err == nil {
		t.Error("a socket without an owner passes")
	}
}

// Both ways to find the owner of a connection agree.
func TestOwnerOfAConnection(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		listener, _ := serve(t, address)
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		local, remote := conn.LocalAddr().(*net.TCPAddr).AddrPort(), conn.RemoteAddr().(*net.TCPAddr).AddrPort()
		table := map[bool]string{true: "/proc/thread-self/net/tcp", false: "/proc/thread-self/net/tcp6"}[local.Addr().Is4()]
		if uid, err := ownerInTable(table, local, remote); err != nil || uid != os.Getuid() {
			t.Errorf("the table has uid %d of %s; %v", uid, local, err)
		}
		diag, err := linux.OpenSocketDiag()
		if err != nil {
			t.Fatal(err)
		}
		defer diag.Close()
		if uid, open, err := diag.Owner(local, remote); err != nil || !open || int(uid) != os.Getuid() {
			t.Errorf("diagnostics have uid %d of %s, open: %t; %v", uid, local, open, err)
		}
		// The kernel finds the listener, which is not a connection.
		if _, open, err := diag.Owner(remote, netip.AddrPortFrom(local.Addr(), 1)); err != nil || open {
			t.Errorf("a connection that is none: open %t, %v", open, err)
		}
	}
}

// Another user's connections must not keep Accept busy: to find the owner of one of them,
// it reads no table of all of the host's sockets.
func TestOwnersAreFoundWithoutTheTableOfSockets(t *testing.T) {
	const lookups = 100
	listener, _ := serve(t, "127.0.0.1:0")
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	local, remote := conn.LocalAddr().(*net.TCPAddr).AddrPort(), conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := bytesRead(t)
	for range lookups {
		if uid, err := owner(local, remote); err != nil || uid != os.Getuid() {
			t.Fatalf("uid %d of %s; %v", uid, local, err)
		}
	}
	// A table has a line of 150 bytes for each end of the connection. A message from the
	// kernel's socket diagnostics does not count.
	if read := bytesRead(t) - before; read > 150*lookups {
		t.Errorf("%d lookups read %d bytes", lookups, read)
	}
}

// bytesRead returns the number of bytes that this thread has read from files.
func bytesRead(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/io")
	if err == nil {
		_, err = fmt.Sscanf(string(text), "rchar: %d", &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOnlyLoopbackIsServed(t *testing.T) {
	if listener, err := Listen(netip.MustParseAddrPort("0.0.0.0:0")); err == nil {
		listener.Close()
		t.Error("it listens on all addresses")
	}
}

func nextRefusal(refused chan error) error {
	select {
	case err := <-refused:
		return err
	default:
		return nil
	}
}
