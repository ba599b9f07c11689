package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/cmd/containerd/server"
	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/version"
	"github.com/containerd/log"
	"github.com/containerd/plugin/registry"
	"google.golang.org/grpc/grpclog"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/notify"
	"berth.dev/berth/runtime/internal/peers"
)

type options struct {
	config   string
	logLevel string
	notifyFD int
	layersFD int
	budget   budget.Budget
}

func run(args []string) error {
	var o options
	flags := flag.NewFlagSet("containerd", flag.ContinueOnError)
	flags.StringVar(&o.config, "config", "", "path of the configuration `file`")
	flags.StringVar(&o.config, "c", "", "short for --config")
	flags.StringVar(&o.logLevel, "log-level", "", "trace, debug, info, warn or error; overrides the configuration")
	flags.IntVar(&o.notifyFD, "notify-fd", -1, "descriptor that gets one JSON event per line")
	flags.IntVar(&o.layersFD, "layers-fd", -1, "socket to the role that serves images")
	flags.Func("image-budget", "`number` that multiplies the limits on images", o.budget.Set)
	showVersion := flags.Bool("version", false, "print the version")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if *showVersion {
		fmt.Println("containerd", version.Package, version.Version)
		return nil
	}
	if o.config == "" || flags.NArg() > 0 {
		return errors.New("usage: containerd --config FILE [--log-level LEVEL] [--notify-fd N] [--layers-fd N] [--image-budget N]")
	}
	// containerd starts CNI plugins and shims, and shims start runc. These processes live
	// for milliseconds, and threads and garbage collections only delay them. Only the
	// shim that serves a pod lives longer, and it sets both variables again for itself.
	if err := errors.Join(os.Setenv("GOMAXPROCS", "1"), os.Setenv("GOGC", "off")); err != nil {
		return err
	}
	// All processes of a job may receive a signal at once (scancel, time limit), but
	// containerd must not end by itself: it ends with the sandbox. It ends in order only at
	// SIGPWR, which Slurm never sends; the tests of this module use it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	// Shims and CNI plugins inherit this, and ignore both signals from their first
	// instruction. The runtime of Go keeps no other signal ignored that ends a program.
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGPWR)
	defer stop()
	return serve(ctx, o)
}

// serve starts the daemon and returns after ctx is done and the databases are
// closed. Containers continue, because their shims outlive a restart of containerd.
func serve(ctx context.Context, o options) error {
	notifier := notify.New(o.notifyFD)
	begin := time.Now()
	// gRPC reports every connection that a client drops.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))

	config, err := loadConfig(ctx, o)
	if err != nil {
		return err
	}
	if err := server.CreateTopLevelDirectories(config); err != nil {
		return fmt.Errorf("create containerd's directories (root %s, state %s): %w", config.Root, config.State, err)
	}
	if err := mount.SetTempMountLocation(filepath.Join(config.State, "tmpmounts")); err != nil {
		return fmt.Errorf("create directory for temporary mounts: %w", err)
	}
	// A killed predecessor may have left temporary mounts.
	if _, err := mount.CleanupTempMounts(0); err != nil {
		log.G(ctx).WithError(err).Warn("remove temporary mounts")
	}

	counts := &peers.Counts{}
	registry.Register(contentPlugin(counts))
	registry.Register(overlayPlugin())
	registry.Register(layersPlugin(o.layersFD, notifier.Notice, o.budget))
	registry.Register(layerDiffer(notifier.Notice, o.budget))
	registry.Register(seedPlugin())
	around := &pulls{budget: o.budget}
	registry.Register(mirrorPlugin(around))
	registry.Register(reservePlugin())
	around.wrap()
	// The server gets a separate context: plugins hold it, and must work until
	// Stop has closed them.
	s, err := server.New(context.WithoutCancel(ctx), config)
	if err != nil {
		return fmt.Errorf("start containerd's plugins: %w", err)
	}
	defer s.Stop()
	notifier.Phase("plugins")
	if err := s.Start(ctx); err != nil {
		return fmt.Errorf("listen on containerd's sockets: %w", err)
	}
	ready := make(chan struct{})
	go func() {
		s.Wait()
		close(ready)
	}()
	select {
	case <-ready:
	case <-ctx.Done():
		return nil
	}
	log.G(ctx).Infof("containerd ready after %s", time.Since(begin).Round(time.Millisecond))
	notifier.Ready()
	notifier.Counts = counts.Map
	notifier.Alive(ctx, nil)
	return nil
}

func loadConfig(ctx context.Context, o options) (*srvconfig.Config, error) {
	config := &srvconfig.Config{Version: version.ConfigVersion}
	if err := srvconfig.LoadConfig(ctx, o.config, config); err != nil {
		return nil, fmt.Errorf("load configuration %s: %w", o.config, err)
	}
	level := o.logLevel
	if level == "" {
		level = config.Debug.Level
	}
	if level != "" {
		if err := log.SetLevel(level); err != nil {
			return nil, fmt.Errorf("set log level %q: %w", level, err)
		}
	}
	if err := log.SetFormat(log.TextFormat); err != nil {
		return nil, fmt.Errorf("set log format: %w", err)
	}
	return config, nil
}
