package launch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/launch/identity"
	"berth.dev/berth/internal/launch/supervisor"
	"berth.dev/berth/internal/network/balancer"
	"berth.dev/berth/internal/node/sandbox"
)

// BalancerArg starts this program again as the balancer. main passes what follows it
// to Balancer: the plan's file and, on a node with a control plane, a flag with the
// descriptor of the listener for programs on the host.
const (
	BalancerArg          = "balancer-role"
	balancerListenerFlag = "--listener-fd"
)

// replicaRoles returns the further roles of a node in a cluster with several control
// planes. The balancer connects clients to a live API server. The controllers of a
// control plane are a separate process. They end when they lose an election, which
// must not end etcd. self is the path of this program.
func replicaRoles(self string, plan cluster.Plan, box *sandbox.Sandbox, listener *os.File) []*supervisor.Role {
	file := plan.Paths.Plan()
	balancing := supervisor.InSandbox(box, &supervisor.Role{
		Name: "balancer", Path: self,
		Args: []string{BalancerArg, file},
	})
	if !plan.Control() {
		return []*supervisor.Role{balancing}
	}
	balancing.Passed = []supervisor.Passed{{Flag: balancerListenerFlag, File: listener}}
	return []*supervisor.Role{balancing, supervisor.InSandbox(box, &supervisor.Role{
		Name: "controllers", Path: filepath.Join(plan.Paths.Libexec, "berth-kube"),
		Args: []string{"controllers", "--plan", file}, NotifyFlag: "--notify-fd",
	})}
}

// Balancer runs the balancer, and returns the exit status.
func Balancer(args []string) int {
	sandbox.OutliveSignals()
	notifier := notify.New(supervisor.NotifyFD)
	if err := runBalancer(args, notifier); err != nil {
		notifier.Fatal(err)
		fmt.Fprintln(os.Stderr, "balancer:", err)
		return 1
	}
	return 0
}

func runBalancer(args []string, notifier *notify.Notifier) error {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	var plan cluster.Plan
	if err := json.Unmarshal(text, &plan); err != nil {
		return fmt.Errorf("decode plan %s: %w", args[0], err)
	}
	check, err := apiCheck(plan)
	if err != nil {
		return err
	}
	var dialer net.Dialer
	b, err := balancer.New(balancer.Config{
		Servers: apiServers(plan), Check: check,
		Dial: func(ctx context.Context, server string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", server)
		},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	ctx := context.Background() // this process ends with the sandbox
	listener, err := net.Listen("tcp", plan.Addresses.APIBalancer.String())
	if err != nil {
		return fmt.Errorf("listen for clients of the API server: %w", err)
	}
	var group errgroup.Group
	group.Go(func() error { return b.Serve(ctx, listener) })
	if len(args) > 1 {
		fd, err := strconv.Atoi(args[len(args)-1])
		if err != nil {
			return fmt.Errorf("%s: %w", balancerListenerFlag, err)
		}
		file, err := linux.PassedFile(fd)
		if err != nil {
			return err
		}
		onHost, err := net.FileListener(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("use the API server's listener on the host: %w", err)
		}
		group.Go(func() error { return b.Serve(ctx, onHost) })
	}
	go notifier.Alive(ctx, nil)
	notifier.Ready()
	go b.Run(ctx)
	return group.Wait()
}

// apiServers returns the API servers of the cluster in this node's order of
// preference: its own first, or else one that differs between nodes.
func apiServers(plan cluster.Plan) []string {
	replicas := plan.Replicas()
	var servers []string
	for i := range replicas {
		member := replicas[(plan.Index+i)%len(replicas)]
		servers = append(servers, netip.AddrPortFrom(member.Address, plan.Addresses.APIPort).String())
	}
	return servers
}

// apiCheck returns a function that checks whether an API server is ready. An open
// connection proves nothing, because the kernel accepts connections for a process
// that is about to restart. The function keeps its connection, so each check
// costs little.
func apiCheck(plan cluster.Plan) (func(context.Context, string) error, error) {
	authority, err := os.ReadFile(plan.Paths.PKI(cluster.CA + ".crt"))
	if err != nil {
		return nil, fmt.Errorf("read the cluster's CA: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: identity.APIServerName},
		IdleConnTimeout: time.Minute,
	}}
	return func(ctx context.Context, server string) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16))
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("it is not ready: %s", response.Status)
		}
		return nil
	}, nil
}
