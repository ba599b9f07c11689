// Command coredns is upstream's CoreDNS with the plugins that a cluster's DNS
// needs and no others: the rest brings the libraries of several clouds, which
// would triple the program and its start.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/coremain"

	// A plugin registers itself; their order of execution is upstream's and
	// does not depend on the order here.
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/bufsize"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/rewrite"

	"berth.dev/berth/programs/coredns/fair"
)

func main() {
	notify, err := openNotify(os.Getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, "coredns:", err)
		os.Exit(1)
	}
	fair.Register(func(text string) { notice(notify, text) })
	// Everything in a job may be signalled at once (scancel, time limit), and
	// pods that end in order still ask for names. CoreDNS has installed its
	// signal handlers when it starts to serve, so replace them then. It starts no
	// programs that would inherit ignored signals.
	caddy.RegisterEventHook("berth", func(event caddy.EventName, _ any) error {
		if event != caddy.InstanceStartupEvent {
			return nil
		}
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
		return heartbeat(notify, os.Getenv)
	})
	coremain.Run()
}
