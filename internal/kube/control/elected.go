package control

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/heap"
	"berth.dev/berth/internal/base/notify"
)

// Each controller runs on several nodes, and only the one that holds the lease works. It
// ends if it cannot renew its lease for renewDeadline. Another one takes over
// leaseDuration after the last renewal. renewDeadline must be longer than an election of
// etcd and a change to another API server take. Otherwise the loss of one node would end
// the controllers of other nodes.
const (
	leaseDuration = 10 * time.Second
	renewDeadline = 8 * time.Second
	retryPeriod   = time.Second
)

// balancerLease is the lease of the load-balancer controller.
const balancerLease = "berth-load-balancer"

// ControllersMain runs the controllers of one of several control planes until
// ctx ends: upstream's controllers, the scheduler and the load-balancer
// controller. args are:
//
//	--plan FILE          the plan, as JSON
//	--notify-fd N        the descriptor for reports; see package notify
func ControllersMain(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("controllers", flag.ContinueOnError)
	planFile := flags.String("plan", "", "`file` with the plan of the cluster")
	notifyFD := flags.Int("notify-fd", -1, "descriptor to report to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	notifier := notify.New(*notifyFD)
	plan, err := readPlan(*planFile)
	if err == nil {
		err = runControllers(ctx, plan, notifier)
	}
	if err != nil {
		notifier.Fatal(err)
	}
	return err
}

func runControllers(ctx context.Context, plan cluster.Plan, notifier *notify.Notifier) error {
	logProblems(ctx, "controllers", notifier)
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	scheduler, err := parseSchedulerOptions(plan)
	if err != nil {
		return err
	}
	manager, err := parseManagerOptions(ctx, plan, nil)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", plan.Paths.Kubeconfig(cluster.UserAdmin))
	if err != nil {
		return fmt.Errorf("read kubeconfig of the controllers: %w", err)
	}
	config.QPS = -1 // no limit: the server's own limits suffice
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make the client of the controllers: %w", err)
	}
	// Send heartbeats while no API server answers: this process does not hang.
	go notifier.Alive(ctx, nil)
	if err := waitReady(ctx, client); err != nil {
		return unlessStopped(ctx, err)
	}
	notifier.Ready()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { heap.Settle(ctx, settleTime); return nil })
	group.Go(func() error { return runManager(ctx, manager) })
	group.Go(func() error { return runScheduler(ctx, scheduler) })
	group.Go(func() error {
		return whileElected(ctx, client, plan, balancerLease, func(ctx context.Context) error {
			return runLoadBalancer(ctx, client, plan, utilfeature.DefaultFeatureGate)
		})
	})
	return group.Wait()
}

// whileElected calls do each time that this node acquires a lease. The context of do ends
// with the lease. whileElected returns nil when ctx ends, or the error of do.
func whileElected(ctx context.Context, client kubernetes.Interface, plan cluster.Plan, lease string, do func(context.Context) error) error {
	failed := make(chan error, 1)
	for ctx.Err() == nil {
		term, end := context.WithCancel(ctx)
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name: lease,
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: lease},
				Client:     client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: plan.Node.Name + "-" + fmt.Sprint(os.Getpid())},
			},
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					if err := do(ctx); err != nil {
						failed <- err
						end()
					}
				},
				OnStoppedLeading: func() { slog.Debug("lost or gave back a lease", "lease", lease) },
			},
		})
		if err != nil {
			end()
			return fmt.Errorf("take part in the election (lease %s): %w", lease, err)
		}
		elector.Run(term)
		end()
		select {
		case err := <-failed:
			return unlessStopped(ctx, err)
		default:
		}
	}
	return nil
}
