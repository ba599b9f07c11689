package control

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	managerapp "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	managerconfig "k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	manageroptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	schedulerapp "k8s.io/kubernetes/cmd/kube-scheduler/app"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/controller/job"

	"berth.dev/berth/internal/base/cluster"
)

// clientArgs returns the arguments that kube-controller-manager and kube-scheduler have in
// common. They elect leaders only if there are several control planes, and serve no
// metrics. With upstream's limit of 20 requests per second, the start of a hundred pods
// would take minutes.
func clientArgs(plan cluster.Plan, user string) []string {
	election := []string{"--leader-elect=false"}
	if plan.Replicated() {
		election = []string{
			"--leader-elect=true",
			"--leader-elect-lease-duration=" + leaseDuration.String(),
			"--leader-elect-renew-deadline=" + renewDeadline.String(),
			"--leader-elect-retry-period=" + retryPeriod.String(),
		}
	}
	return append(election,
		"--kubeconfig="+plan.Paths.Kubeconfig(user),
		"--secure-port=0",
		"--kube-api-qps=1000",
		"--kube-api-burst=2000",
	)
}

// parseManagerOptions configures kube-controller-manager. Addresses of pods are
// not allocated here (allocate-node-cidrs is off): the plan gives each node its
// part of the range.
func parseManagerOptions(ctx context.Context, plan cluster.Plan, serving <-chan struct{}) (*managerconfig.Config, error) {
	opts, err := manageroptions.NewKubeControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("make options of kube-controller-manager: %w", err)
	}
	known, off, aliases := managerapp.KnownControllers(), managerapp.ControllersDisabledByDefault(), managerapp.ControllerAliases()
	flags := pflag.NewFlagSet("kube-controller-manager", pflag.ContinueOnError)
	for _, set := range opts.Flags(known, off, aliases).FlagSets {
		flags.AddFlagSet(set)
	}
	args := append(clientArgs(plan, cluster.UserControllerManager),
		"--root-ca-file="+plan.Paths.PKI(cluster.CA+".crt"),
		"--cluster-signing-cert-file="+plan.Paths.PKI(cluster.CA+".crt"),
		"--cluster-signing-key-file="+plan.Paths.PKI(cluster.CA+".key"),
		"--service-account-private-key-file="+plan.Paths.PKI(cluster.ServiceTokens+".key"),
		"--cluster-cidr="+plan.Addresses.List(func(f cluster.Family) string { return f.Pods.String() }),
		"--service-cluster-ip-range="+serviceRanges(plan),
		// Upstream's default is below /usr, and the controller manager would create it.
		"--flex-volume-plugin-dir="+filepath.Join(plan.Paths.Run, "flexvolume"),
		// A node that was checked after its registration, but before it was
		// ready, has a taint until the next check. Upstream checks every five
		// seconds.
		"--node-monitor-period=250ms",
	)
	if err := flags.Parse(args); err != nil {
		return nil, fmt.Errorf("parse options of kube-controller-manager: %w", err)
	}
	config, err := opts.Config(ctx, known, off, aliases)
	if err != nil {
		return nil, fmt.Errorf("configure kube-controller-manager: %w", err)
	}
	config.Kubeconfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return staleTaints{next} })
	if serving != nil {
		config.Kubeconfig.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return healthyWhenServing{next, serving}
		})
	}
	return config, nil
}

// jobBatch is the time that the Job controller collects changes of a Job's pods before
// it acts. Upstream's value of a second saves requests in large clusters. In berth, it
// would be most of the time between the end of a workload and the end of the run.
const jobBatch = 20 * time.Millisecond

// runManager runs the controllers until ctx ends.
func runManager(ctx context.Context, config *managerconfig.Config) error {
	job.SyncJobBatchPeriod = jobBatch
	err := managerapp.Run(ctx, config.Complete())
	if ctx.Err() != nil {
		return nil
	}
	return ended("kube-controller-manager", err)
}

// parseSchedulerOptions configures kube-scheduler.
func parseSchedulerOptions(plan cluster.Plan) (*scheduleroptions.Options, error) {
	opts := scheduleroptions.NewOptions()
	flags := pflag.NewFlagSet("kube-scheduler", pflag.ContinueOnError)
	for _, set := range opts.Flags.FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(clientArgs(plan, cluster.UserScheduler)); err != nil {
		return nil, fmt.Errorf("parse options of kube-scheduler: %w", err)
	}
	return opts, nil
}

// runScheduler runs the scheduler until ctx ends.
func runScheduler(ctx context.Context, opts *scheduleroptions.Options) error {
	config, scheduler, err := schedulerapp.Setup(ctx, opts)
	if err != nil {
		return fmt.Errorf("set up kube-scheduler: %w", err)
	}
	err = schedulerapp.Run(ctx, config, scheduler)
	if ctx.Err() != nil {
		return nil
	}
	return ended("kube-scheduler", err)
}

// ended returns the error for a component that returned although ctx had not ended.
func ended(component string, err error) error {
	if err == nil {
		return fmt.Errorf("run %s: it ended by itself; see the log above", component)
	}
	return fmt.Errorf("run %s: %w", component, err)
}

// healthyWhenServing answers kube-controller-manager's requests for kube-apiserver's
// health when the server accepts requests, which is all that the controllers need. The
// server's own answer includes hooks that do not concern the controllers, so during the
// start the first answer would always be negative. kube-controller-manager would repeat
// its request only after a second.
type healthyWhenServing struct {
	next    http.RoundTripper
	serving <-chan struct{}
}

func (h healthyWhenServing) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path != "/healthz" {
		return h.next.RoundTrip(r)
	}
	select {
	case <-h.serving:
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:  http.Header{},
		Body:    io.NopCloser(strings.NewReader("ok")),
		Request: r,
	}, nil
}
