package overlay

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// For measurements each node's overlay is a separate process, as in a job, and so
// is each program that sends or receives. They are the test binary with one of
// these variables in its environment.
const (
	asRole     = "BERTH_OVERLAY_TEST_ROLE"
	profiled   = "BERTH_OVERLAY_PROFILE" // a folder for profiles of overlays
	carrying   = "carry"
	answering  = "answer"
	asking     = "ask"
	accepting  = "accept"
	connecting = "connect"
	holding    = "hold"
	firstExtra = 3
)

// runRole runs the role, as the main function of its process.
func runRole(role string) error {
	switch role {
	case carrying:
		return carryUntilEnd()
	case holding:
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case answering:
		return answerBytes(os.Getenv("ADDRESS"))
	case accepting:
		return acceptAll(os.Getenv("ADDRESS"))
	case asking, connecting:
		n, err := strconv.Atoi(os.Getenv("ROUNDS"))
		if err != nil {
			return err
		}
		if role == asking {
			return askBytes(os.Getenv("ADDRESS"), n)
		}
		return connectOften(os.Getenv("ADDRESS"), n)
	}
	return fmt.Errorf("no role %q", role)
}

type processConfig struct {
	Nodes   []Node
	Self    int
	Queues  int
	Carrier Carrier
	Streams bool
}

// carryUntilEnd runs an overlay until its standard input ends.
func carryUntilEnd() error {
	var t processConfig
	if err := json.Unmarshal([]byte(os.Getenv("CONFIG")), &t); err != nil {
		return err
	}
	config := Config{Key: testKey, Nodes: t.Nodes, Self: t.Self, Carrier: t.Carrier, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	for i := range t.Queues {
		for _, fd := range []int{firstExtra + i, firstExtra + t.Queues + i} {
			if err := unix.SetNonblock(fd, true); err != nil {
				return err
			}
		}
		config.Queues = append(config.Queues, os.NewFile(uintptr(firstExtra+i), "mesh"))
		conn, err := net.FilePacketConn(os.NewFile(uintptr(firstExtra+t.Queues+i), "socket"))
		if err != nil {
			return err
		}
		config.Conns = append(config.Conns, conn.(*net.UDPConn))
	}
	if t.Streams {
		listener, err := net.FileListener(os.NewFile(uintptr(firstExtra+2*t.Queues), "listener"))
		if err != nil {
			return err
		}
		config.Listener = listener.(*net.TCPListener)
	}
	if folder := os.Getenv(profiled); folder != "" {
		file, err := os.Create(fmt.Sprintf("%s/overlay%d.pprof", folder, t.Self))
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + Threads(t.Queues))
	o, err := New(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	fmt.Println("ready")
	err = o.Run(ctx)
	if os.Getenv(profiled) != "" {
		fmt.Fprintf(os.Stderr, "node %d: %+v\n", t.Self, o.Counters())
	}
	return err
}

// carryElsewhere runs the overlay of a member in a separate process, on the cores
// of its namespace's thread.
func (m *member) carryElsewhere(t testing.TB, self int, nodes []Node) {
	t.Helper()
	config, err := json.Marshal(processConfig{Nodes: nodes, Self: self, Queues: len(m.tuns), Carrier: m.carrier, Streams: m.listener != nil})
	if err != nil {
		t.Fatal(err)
	}
	files := slices.Concat(m.tuns, m.conns)
	if m.listener != nil {
		file, err := m.listener.File()
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		files = append(files, file)
	}
	command := m.role(carrying, "CONFIG="+string(config))
	command.ExtraFiles = files
	command.Stderr = os.Stderr
	end, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.host.try(t, command.Start)
	if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
		t.Fatalf("no overlay: %v", err)
	}
	m.programs = append(m.programs, command.Process)
	t.Cleanup(func() {
		end.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("overlay of node %d: %v", self, err)
		}
	})
}

func (m *member) role(role string, env ...string) *exec.Cmd {
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), asRole+"="+role)
	command.Env = append(command.Env, env...)
	command.SysProcAttr = &syscall.SysProcAttr{}
	return command
}

// The programs below use blocking system calls, so that the measurement does not
// include Go's poller.

func rawTCP(address string) (int, netip.AddrPort, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return -1, to, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, to, err
	}
	return fd, to, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
}

// rawListen prints the address that it listens on.
func rawListen(address string) (int, error) {
	fd, at, err := rawTCP(address)
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}); err != nil {
		return -1, err
	}
	if err := unix.Listen(fd, 128); err != nil {
		return -1, err
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return -1, err
	}
	fmt.Println(netip.AddrPortFrom(at.Addr(), uint16(bound.(*unix.SockaddrInet4).Port)))
	return fd, nil
}

// acceptAll ends each connection once a byte has come, until one sends nothing.
func acceptAll(address string) error {
	runtime.LockOSThread()
	fd, err := rawListen(address)
	if err != nil {
		return err
	}
	for buffer := make([]byte, 1); ; {
		conn, _, err := unix.Accept(fd)
		if err != nil {
			return err
		}
		n, err := unix.Read(conn, buffer)
		unix.Close(conn)
		if err != nil || n == 0 {
			return err
		}
	}
}

// connectOften prints the times of connects, each with a byte there and the
// end of the connection back.
func connectOften(address string, rounds int) error {
	runtime.LockOSThread()
	buffer := make([]byte, 1)
	var times []time.Duration
	for round := range rounds + 1 {
		start := time.Now()
		fd, to, err := rawTCP(address)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
			return err
		}
		if round == rounds {
			break // marks the last connection
		}
		if _, err := unix.Write(fd, buffer); err != nil {
			return err
		}
		if _, err := unix.Read(fd, buffer); err != nil {
			return err
		}
		unix.Close(fd)
		times = append(times, time.Since(start))
	}
	return printTimes(times)
}

// answerBytes sends back what the first connection sends, until it ends.
func answerBytes(address string) error {
	runtime.LockOSThread()
	fd, err := rawListen(address)
	if err != nil {
		return err
	}
	conn, _, err := unix.Accept(fd)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(conn, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	buffer := make([]byte, 1)
	for {
		if n, err := unix.Read(conn, buffer); err != nil || n == 0 {
			return err
		}
		if _, err := unix.Write(conn, buffer); err != nil {
			return err
		}
	}
}

// roundTrips are microseconds.
type roundTrips struct{ P50, P99 float64 }

func printTimes(times []time.Duration) error {
	slices.Sort(times)
	at := func(percent int) float64 { return float64(times[len(times)*percent/100].Nanoseconds()) / 1000 }
	return json.NewEncoder(os.Stdout).Encode(roundTrips{P50: at(50), P99: at(99)})
}

func askBytes(address string, rounds int) error {
	runtime.LockOSThread()
	fd, to, err := rawTCP(address)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		return err
	}
	buffer := make([]byte, 1)
	var times []time.Duration
	for range rounds {
		start := time.Now()
		if _, err := unix.Write(fd, buffer); err != nil {
			return err
		}
		if _, err := unix.Read(fd, buffer); err != nil {
			return err
		}
		times = append(times, time.Since(start))
	}
	return printTimes(times)
}

// pin restricts programs started in the namespaces of a member to one core.
func (m *member) pin(t testing.TB, core int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(core % runtime.NumCPU())
	for _, n := range append(slices.Collect(maps.Values(m.rivals)), m.host, m.node) {
		n.try(t, func() error { return unix.SchedSetaffinity(0, &set) })
	}
}
