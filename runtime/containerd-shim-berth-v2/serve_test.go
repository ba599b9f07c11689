package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// Variables that make the test program another one.
const (
	// outlive makes it a process with a shim's signals, until the end of its standard
	// input.
	outlive = "TEST_OUTLIVE"
	// early makes it the shim. The server of a pod gets signals before it does anything.
	early = "TEST_EARLY"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(outlive) != "":
		outliveSignals()
		fmt.Println("ready")
		_, _ = io.ReadAll(os.Stdin)
	case os.Getenv(early) != "":
		if _, ok := readServerOptions(os.Args[1:]); ok {
			signalSelf()
			return
		}
		main()
	default:
		os.Exit(m.Run())
	}
}

// signalSelf gives its own thread the signals of a job, which act at once, and then
// answers the next client of the shim.
func signalSelf() {
	runtime.LockOSThread()
	err := errors.Join(
		unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGINT),
		unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGHUP),
	)
	listener, listenErr := net.FileListener(os.NewFile(socketFD, "socket"))
	if err = errors.Join(err, listenErr); err != nil {
		return
	}
	if client, err := listener.Accept(); err == nil {
		fmt.Fprint(client, "outlived")
		client.Close()
	}
}

// Until the server of a pod catches signals, it ignores them from its first instruction.
func TestShimOutlivesSignalsBeforeItsOwnHandlers(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("config.json", []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	sockets := "sockets" // relative, because the path of a socket has at most 107 bytes
	params, err := proto.Marshal(&bootapi.BootstrapParams{InstanceID: "pod", SocketDir: &sockets, LogLevel: bootapi.LogLevel_LOG_LEVEL_INFO})
	if err != nil {
		t.Fatal(err)
	}
	start := exec.CommandContext(t.Context(), "/proc/self/exe", "-namespace", "test", "-id", "pod", "start")
	start.Env = append(os.Environ(), early+"=yes")
	start.Stdin, start.Stderr = bytes.NewReader(params), os.Stderr
	output, err := start.Output()
	if err != nil {
		t.Fatal(err)
	}
	var result bootapi.BootstrapResult
	if err := proto.Unmarshal(output, &result); err != nil {
		t.Fatal(err)
	}
	server, err := net.Dial("unix", strings.TrimPrefix(result.Address, "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if answer, err := io.ReadAll(server); err != nil || string(answer) != "outlived" {
		t.Errorf("the server of the pod ended: %q, %v", answer, err)
	}
}

// The signals of a job reach its shims, too, and the pods need them to end in order.
func TestShimOutlivesSignalsOfItsJob(t *testing.T) {
	shim := exec.CommandContext(t.Context(), "/proc/self/exe")
	shim.Env = append(os.Environ(), outlive+"=yes")
	stdin, err := shim.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := shim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shim.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Errorf("%q, %v", line, err)
	}
	for _, signal := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if err := shim.Process.Signal(signal); err != nil {
			t.Errorf("%s: %v", signal, err)
		}
	}
	stdin.Close()
	if err := shim.Wait(); err != nil {
		t.Error(err)
	}
}

// A child may end before the goroutine that reaps has run for the first time.
func TestEndOfFirstChildIsKept(t *testing.T) {
	ended := catchChildren()
	if err := exec.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("no SIGCHLD of a child that ended before anybody read the channel")
	}
}
