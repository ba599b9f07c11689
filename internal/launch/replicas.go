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
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/launch/supervisor"
	"berth.dev/berth/internal/network/balancer"
	"berth.dev/berth/internal/node/sandbox"
)

// BalancerArg is the argument with which the program is started again as the
// balancer, followed by the plan's file; main hands it to Balancer.
const BalancerArg = "balancer-role"

// Descriptors of the balancer. The door, where programs on the host reach the
// API server, is there on nodes with a control plane only.
const (
	balancerNotifyFD = 3
	balancerDoorFD   = 4
)

// replicaRoles are the roles of a node in a cluster with several control
// planes: everybody's way to one that lives and, where the node has one itself,
// that control plane, with its controllers in a process of their own. These end
// when they lose an election, which must not take etcd along.
func (r *run) replicaRoles(kube string) []*supervisor.Role {
	plan := r.plan.Paths.Plan()
	way := supervisor.InSandbox(r.box, &supervisor.Role{
		Name: "balancer", Path: "/proc/self/exe",
		Args: []string{BalancerArg, plan, strconv.FormatBool(r.plan.Control())},
	})
	if !r.plan.Control() {
		return []*supervisor.Role{way}
	}
	way.Listeners = []*os.File{r.apiListener}
	return []*supervisor.Role{
		way,
		supervisor.InSandbox(r.box, &supervisor.Role{
			Name: "control", Path: kube,
			Args:      []string{"control", "--plan", plan, "--notify-fd", "3", "--listener-fd", "4"},
			Listeners: []*os.File{r.box.Listener},
		}),
		supervisor.InSandbox(r.box, &supervisor.Role{
			Name: "controllers", Path: kube,
			Args: []string{"controllers", "--plan", plan, "--notify-fd", "3"},
		}),
	}
}

// Balancer is the main function of the balancer. It returns its exit status.
func Balancer(planFile, hasDoor string) int {
	sandbox.OutliveSignals()
	notifier := notify.New(balancerNotifyFD)
	if err := runBalancer(planFile, hasDoor == "true", notifier); err != nil {
		notifier.Fatal(err)
		fmt.Fprintln(os.Stderr, "balancer:", err)
		return 1
	}
	return 0
}

func runBalancer(planFile string, hasDoor bool, notifier *notify.Notifier) error {
	text, err := os.ReadFile(planFile)
	if err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	var plan cluster.Plan
	if err := json.Unmarshal(text, &plan); err != nil {
		return fmt.Errorf("decode plan %s: %w", planFile, err)
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
	if hasDoor {
		file, err := passedFile(balancerDoorFD)
		if err != nil {
			return err
		}
		door, err := net.FileListener(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("use the API server's door on the host: %w", err)
		}
		group.Go(func() error { return b.Serve(ctx, door) })
	}
	go notifier.Alive(ctx, nil)
	notifier.Ready()
	go b.Run(ctx)
	return group.Wait()
}

// apiServers are those of the cluster, the best one for this node first: its
// own, or else one that not all others take.
func apiServers(plan cluster.Plan) []string {
	replicas := plan.Replicas()
	var servers []string
	for i := range replicas {
		member := replicas[(plan.Index+i)%len(replicas)]
		servers = append(servers, netip.AddrPortFrom(member.Address, plan.Addresses.APIPort).String())
	}
	return servers
}

// apiCheck returns a function that asks an API server whether it is ready. A
// connection alone proves nothing: the kernel takes it for a process that is
// about to be started again. The connection of the last question is used for
// the next, so each costs little.
func apiCheck(plan cluster.Plan) (func(context.Context, string) error, error) {
	authority, err := os.ReadFile(plan.Paths.PKI(cluster.CA + ".crt"))
	if err != nil {
		return nil, fmt.Errorf("read the cluster's CA: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: apiServerName},
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
