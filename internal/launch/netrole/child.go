package netrole

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"

	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/network/egress"
	"berth.dev/berth/internal/network/overlay"
	"berth.dev/berth/internal/node/sandbox"
)

// Main runs the net role, and returns the exit status. The role ends with the
// sandbox, whose end closes the TUN device, or with its parent.
func Main() int {
	notifier := notify.New(notifyFD)
	if err := runNet(notifier); err != nil {
		notifier.Fatal(err)
		fmt.Fprintln(os.Stderr, "net:", err)
		return 1
	}
	return 0
}

func runNet(notifier *notify.Notifier) error {
	sandbox.OutliveSignals()
	// A parent-death signal would be tied to the thread that forked, and Go's
	// threads come and go. The supervisor is the only reader of the notify pipe,
	// so the pipe breaks when the supervisor ends.
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		linux.WaitForClose(notifyFD)
		cancel(errors.New("the supervisor is gone"))
	}()
	var given config
	fds, err := linux.ReceiveFDs(configFD, &given)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	level := slog.LevelInfo
	if given.Debug {
		level = slog.LevelDebug
	}
	config := egress.Default()
	config.Gateway, config.Node, config.Cluster, config.MTU = given.Gateway, given.Node, given.Cluster, given.MTU
	config.Refuse = append(config.Refuse, given.Refuse...)
	config.Log = slog.New(&noticing{Handler: slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}), notifier: notifier})
	tun, err := fds.Take(fdTUN)
	if err != nil {
		return err
	}
	between, err := openOverlay(given, fds, config.Log)
	if err != nil {
		return err
	}
	if config.Publish, err = takePublished(given, fds); err != nil {
		return err
	}
	sockets, err := openSwitch(given, fds, config.Reaches(), config.Log)
	if err != nil {
		return err
	}
	changes, err := takeChanges(fds)
	if err != nil {
		return err
	}
	if err := fds.CheckAllTaken(); err != nil {
		return err
	}
	config.Counters = &egress.Counters{}
	notifier.Counts = func() map[string]uint64 { return counters(config.Counters, between, sockets) }
	go notifier.Alive(ctx, nil)
	notifier.Ready()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + overlay.Threads(given.Queues))
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return egress.Run(groupCtx, tun, config) })
	if between != nil {
		group.Go(func() error { return between.Run(groupCtx) })
	}
	if sockets != nil {
		group.Go(func() error { return sockets.run(groupCtx) })
	}
	if changes != nil {
		context.AfterFunc(groupCtx, func() { changes.Close() })
		group.Go(func() error { return applyChanges(groupCtx, changes, between.Replace, sockets, config.Log) })
	}
	err = group.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// openOverlay prepares the network between the nodes. It returns nil on a single
// node.
func openOverlay(given config, fds linux.PassedFDs, log *slog.Logger) (*overlay.Overlay, error) {
	if given.Queues == 0 {
		return nil, nil
	}
	config := overlay.Config{Key: given.Overlay.Key, Carrier: given.Overlay.Carrier, Nodes: given.Overlay.Nodes, Self: given.Overlay.Self, Log: log}
	for range given.Queues {
		queue, err := fds.Take(fdQueue)
		if err != nil {
			return nil, err
		}
		config.Queues = append(config.Queues, queue)
	}
	for range given.Queues {
		conn, err := linux.TakeAs(fds, fdPackets, net.FilePacketConn)
		if err != nil {
			return nil, fmt.Errorf("use a socket between the nodes: %w", err)
		}
		config.Conns = append(config.Conns, conn.(*net.UDPConn))
	}
	listener, err := linux.TakeAs(fds, fdStreams, net.FileListener)
	if err != nil {
		return nil, fmt.Errorf("use a socket between the nodes: %w", err)
	}
	config.Listener = listener.(*net.TCPListener)
	return overlay.New(config)
}

// takeChanges returns the pipe with changes of the network between the nodes, or nil on a
// single node.
func takeChanges(fds linux.PassedFDs) (*os.File, error) {
	if !fds.Has(fdChanges) {
		return nil, nil
	}
	return fds.Take(fdChanges)
}

// applyChanges makes each change of the network between the nodes with replace, and skips
// one that replace refuses: one node must not end the network of all. It returns an error
// when the pipe ends: then this role may have missed a change, and another one starts with
// all.
func applyChanges(ctx context.Context, from io.Reader, replace func(index int, node overlay.Node) error, sockets *podSwitch, log *slog.Logger) error {
	err := hostnet.ReadChanges(from, func(change hostnet.Change) error {
		if err := replace(change.Index, change.Node()); err != nil {
			log.Warn("its pods cannot be reached from here: "+err.Error(), "node", change.Name)
			return nil
		}
		if sockets == nil {
			return nil
		}
		return sockets.ReplaceNode(change.Index, change.Switches())
	})
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		err = errors.New("the pipe with changes of the network between the nodes has ended")
	}
	return err
}

// takePublished returns the published ports with the listeners that the role inherited.
func takePublished(given config, fds linux.PassedFDs) ([]egress.Published, error) {
	var opened []egress.Published
	for _, to := range given.Published {
		listener, err := linux.TakeAs(fds, fdPublished, net.FileListener)
		if err != nil {
			return nil, fmt.Errorf("use a published port (to %v): %w", to, err)
		}
		opened = append(opened, egress.Published{Listener: listener.(*net.TCPListener), To: to})
	}
	return opened, nil
}
