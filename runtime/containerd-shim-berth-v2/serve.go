package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/containerd/fifo"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
)

// serverOptions holds the command line of the shim as the server of a pod.
type serverOptions struct {
	namespace, id string
	debug         bool
}

// readServerOptions parses args, and reports whether they start the server of a pod.
// Otherwise they are for an action of containerd's shim library.
func readServerOptions(args []string) (o serverOptions, ok bool) {
	flags := flag.NewFlagSet("containerd-shim-berth-v2", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.namespace, "namespace", "", "")
	flags.StringVar(&o.id, "id", "", "")
	flags.String("address", "", "") // events go to TTRPC_ADDRESS
	flags.BoolVar(&o.debug, "debug", false, "")
	return o, flags.Parse(args) == nil && flags.NArg() == 0 && o.id != ""
}

// socketFD is the descriptor of the listening socket that the shim inherits.
const socketFD = 3

// freePeriod is the interval between returns of unused memory to the kernel.
const freePeriod = 30 * time.Second

// serve answers containerd until containerd asks it to end. shim.RunShim does the same, but
// shuts down at SIGINT and SIGTERM once it serves, and does not accept another signal
// handler (containerd 2.3, pkg/shim).
func serve(ctx context.Context, o serverOptions) error {
	outliveSignals()
	go reapChildren(catchChildren())
	if err := reaper.SetSubreaper(1); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	ctx = namespaces.WithNamespace(ctx, o.namespace)
	ctx = context.WithValue(ctx, shim.OptsKey{}, shim.Opts{Debug: o.debug})
	ctx, stop := shutdown.WithShutdown(ctx)
	defer stop.Shutdown()
	if err := setLog(ctx, o.debug); err != nil {
		return err
	}
	publisher, err := shim.NewPublisher(os.Getenv("TTRPC_ADDRESS"))
	if err != nil {
		return fmt.Errorf("connect to containerd for events: %w", err)
	}
	service, err := newService(ctx, o.id, publisher, stop)
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser()))
	if err != nil {
		return fmt.Errorf("make the server: %w", err)
	}
	if err := service.RegisterTTRPC(server); err != nil {
		return fmt.Errorf("register the task service: %w", err)
	}
	socket := os.NewFile(socketFD, "socket")
	listener, err := net.FileListener(socket)
	socket.Close()
	if err != nil {
		return fmt.Errorf("take the inherited socket: %w", err)
	}
	defer func() { _ = shim.RemoveSocket("unix://" + listener.Addr().String()) }()
	go freeMemory()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ctx, listener) }()
	select {
	case err := <-failed:
		if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, ttrpc.ErrServerClosed) {
			return fmt.Errorf("serve containerd: %w", err)
		}
	case <-stop.Done():
	}
	return nil
}

// outliveSignals makes the shim indifferent to signals that reach every process
// of a job at once (scancel, time limit, Ctrl-C). If the shim ended, its containers would
// lose the time that they have to end. containerd ends the shim by a request. The shim
// has inherited SIGINT and SIGHUP as ignored, and catches them from here on, because the
// containers would inherit ignored signals, but they do not inherit handlers.
func outliveSignals() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGPIPE)
}

// setLog directs the log, and what a panic prints, to the pipe that containerd
// reads.
func setLog(ctx context.Context, verbose bool) error {
	if err := log.SetFormat(log.TextFormat); err != nil {
		return fmt.Errorf("set log format: %w", err)
	}
	if verbose {
		if err := log.SetLevel("debug"); err != nil {
			return fmt.Errorf("set log level: %w", err)
		}
	}
	pipe, err := fifo.OpenFifoDup2(ctx, "log", syscall.O_WRONLY, 0o700, int(os.Stderr.Fd()))
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	log.L.Logger.SetOutput(pipe)
	return nil
}

// catchChildren returns a channel that receives SIGCHLD. It must be called before the first
// child starts, because the Go runtime discards a SIGCHLD without a subscriber.
func catchChildren() <-chan os.Signal {
	ended := make(chan os.Signal, 32)
	signal.Notify(ended, syscall.SIGCHLD)
	return ended
}

func reapChildren(ended <-chan os.Signal) {
	for range ended {
		if err := reaper.Reap(); err != nil {
			log.L.WithError(err).Error("reap exit status")
		}
	}
}

func freeMemory() {
	for range time.Tick(freePeriod) {
		debug.FreeOSMemory()
	}
}
