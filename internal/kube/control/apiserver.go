package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/kube/usage"
)

// stopGrace limits how long a stopping kube-apiserver waits for clients to close
// their connections, after the requests in flight are done. Clients have no
// reason to close them, so it always waits the full time.
const stopGrace = 20 * time.Millisecond

// If there are several API servers, each renews its entry among the endpoints of the
// Service kubernetes every endpointPeriod. An entry expires endpointLifetime after its
// last renewal. Upstream's values are 10 and 15 seconds.
const (
	endpointPeriod   = time.Second
	endpointLifetime = 4 * time.Second
)

// repairPeriod is the time between two checks of the ports of Services. Upstream's value is
// three minutes, but an API server ends its process if no check has succeeded a minute after
// its start. So with etcd out of reach for the first check, there was no second one.
const repairPeriod = 15 * time.Second

// anonymousAccess permits requests without authentication only to the health checks.
const anonymousAccess = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
`

// apiServer is a configured kube-apiserver.
type apiServer struct {
	run func(context.Context) error
	// publish is the function that publishAPI returns.
	publish func(context.Context) error
}

// parseAPIServerOptions returns the options of kube-apiserver, and sets the feature gates
// of the whole process. It must not run while the options of another component are
// parsed.
func parseAPIServerOptions(plan cluster.Plan, listener net.Listener) (*options.ServerRunOptions, error) {
	authentication := filepath.Join(plan.Paths.Run, "authentication.yaml")
	if err := os.WriteFile(authentication, []byte(anonymousAccess), 0o600); err != nil {
		return nil, fmt.Errorf("write authentication configuration: %w", err)
	}
	pki := func(name string) string { return plan.Paths.PKI(name) }
	args := []string{
		"--advertise-address=" + plan.Addresses.Node.String(),
		"--service-cluster-ip-range=" + serviceRanges(plan),
		"--etcd-servers=http://in-process", // must look like an address; see serveStorageFrom
		// The history is in memory: 40 KB for each pod. Upstream keeps five to ten
		// minutes of it. Watches do not need it, because they read the watch cache.
		"--etcd-compaction-interval=1m",
		"--tls-cert-file=" + pki(cluster.APIServer+".crt"),
		"--tls-private-key-file=" + pki(cluster.APIServer+".key"),
		"--client-ca-file=" + pki(cluster.CA+".crt"),
		"--authentication-config=" + authentication,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--feature-gates=" + cluster.SplitLogsGate + "=true",
		"--profiling=false",
		// If the kubelet of a node has died, but berth runs there, the node does not
		// count as lost. Its pods are then evicted after these times instead of
		// upstream's five minutes.
		"--default-not-ready-toleration-seconds=30",
		"--default-unreachable-toleration-seconds=30",

		"--kubelet-certificate-authority=" + pki(cluster.CA+".crt"),
		"--kubelet-client-certificate=" + pki(cluster.APIKubelet+".crt"),
		"--kubelet-client-key=" + pki(cluster.APIKubelet+".key"),
		// No resolver knows the names of nodes.
		"--kubelet-preferred-address-types=InternalIP",

		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki(cluster.ServiceTokens+".key"),
		"--service-account-signing-key-file=" + pki(cluster.ServiceTokens+".key"),

		"--requestheader-client-ca-file=" + pki(cluster.FrontProxyCA+".crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + pki(cluster.FrontProxy+".crt"),
		"--proxy-client-key-file=" + pki(cluster.FrontProxy+".key"),
	}
	opts := options.NewServerRunOptions()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	for _, set := range opts.Flags().FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		return nil, fmt.Errorf("parse options of kube-apiserver: %w", err)
	}
	if err := opts.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, fmt.Errorf("set feature gates: %w", err)
	}
	addFolderMounts(opts, plan.Mounts)
	if err := addPodIDs(opts, plan); err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("read the listener's address (%s): %w", listener.Addr(), err)
	}
	opts.SecureServing.Listener = listener
	opts.SecureServing.BindPort, err = strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("read the listener's port (%s): %w", port, err)
	}
	return opts, nil
}

// serviceRanges returns the range of Services of each IP family. A Service that
// requests no family has an address of the first range.
func serviceRanges(plan cluster.Plan) string {
	return plan.Addresses.List(func(f cluster.Family) string { return f.Services.String() })
}

// configure checks the options and makes the configuration, whose admission plugins
// register with plugins.
func configure(ctx context.Context, opts *options.ServerRunOptions, loop *loopback, plugins *admissionPlugins) (
	completed options.CompletedOptions, config *app.Config, err error,
) {
	generics := opts.Admission.GenericAdmission
	addFastPathPlugin(generics)
	// First, because upstream's decorator hides the plugins.
	generics.Decorators = append(admission.Decorators{plugins}, generics.Decorators...)
	completed, err = opts.Complete(ctx)
	if err != nil {
		return completed, nil, fmt.Errorf("complete options of kube-apiserver: %w", err)
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return completed, nil, fmt.Errorf("check options of kube-apiserver: %w", errors.Join(errs...))
	}
	config, err = newConfig(completed, loop)
	return completed, config, err
}

// newAPIServer returns a configured kube-apiserver. It calls seeded, which waits for the
// store, and reports whether the objects of a new cluster were just written there. The
// server calls serving when it accepts requests, and open when the gate delays them no
// longer.
func newAPIServer(ctx context.Context, opts *options.ServerRunOptions, loop *loopback, replicated bool,
	seeded func() (bool, error), serving, open func(),
) (*apiServer, error) {
	plugins := &admissionPlugins{}
	completed, config, err := configure(ctx, opts, loop, plugins)
	if err != nil {
		return nil, err
	}
	generic := config.KubeAPIs.ControlPlane.Generic
	if len(plugins.plugins) == 0 {
		return nil, errors.New("configure kube-apiserver: no admission plugin was noticed")
	}
	gate, ok := generic.Authorization.Authorizer.(*gate)
	if !ok {
		return nil, fmt.Errorf("configure kube-apiserver: authorizer is a %T", generic.Authorization.Authorizer)
	}
	generic.SkipOpenAPIInstallation = true // see lazyOpenAPI

	if fresh, err := seeded(); err != nil {
		return nil, err
	} else if fresh {
		withholdSeededHooks(generic)
	}
	if replicated {
		config.KubeAPIs.Extra.MasterEndpointReconcileTTL = endpointLifetime
		config.KubeAPIs.Extra.EndpointReconcilerConfig.Interval = endpointPeriod
		config.KubeAPIs.Extra.RepairServicesInterval = repairPeriod
	}
	ready, err := config.Complete()
	if err != nil {
		return nil, fmt.Errorf("complete kube-apiserver: %w", err)
	}
	aggregator, err := app.CreateServerChain(ready)
	if err != nil {
		return nil, fmt.Errorf("create kube-apiserver: %w", err)
	}
	apis, ok := aggregator.GenericAPIServer.NextDelegate().(*server.GenericAPIServer)
	if !ok {
		return nil, fmt.Errorf("create kube-apiserver: its delegate is a %T", aggregator.GenericAPIServer.NextDelegate())
	}
	generic.AggregatedDiscoveryGroupManager.SetGroupVersionPriority(metav1.GroupVersion(usage.GroupVersion), metricsPriority, metricsPriority)
	informed := config.KubeAPIs.ControlPlane.VersionedInformers
	if err := usage.Install(apis, informed, completed.KubeletConfig); err != nil {
		return nil, err
	}
	if err := installLazyOpenAPI(apis, generic.OpenAPIConfig, generic.OpenAPIV3Config); err != nil {
		return nil, fmt.Errorf("install OpenAPI documents: %w", err)
	}
	outer := aggregator.GenericAPIServer
	outer.ShutdownTimeout = stopGrace
	err = errors.Join(
		outer.AddPostStartHook("berth/serving", func(server.PostStartHookContext) error {
			serving()
			return nil
		}),
		outer.AddPostStartHook("berth/authorizers", func(hook server.PostStartHookContext) error {
			if gate.openWhenSynced(hook, informed, plugins) {
				open()
			}
			return nil // also when stopping; an error would end the process
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("create kube-apiserver: %w", err)
	}
	publish, err := publishAPI(ready, loop)
	if err != nil {
		return nil, err
	}
	prepared, err := aggregator.PrepareRun()
	if err != nil {
		return nil, fmt.Errorf("prepare kube-apiserver: %w", err)
	}
	return &apiServer{run: prepared.Run, publish: publish}, nil
}

// withholdSeededHooks disables upstream's start hooks that create objects of the seed:
// each hook first waits for a second, and /readyz waits for the hooks.
func withholdSeededHooks(generic *server.Config) {
	generic.DisabledPostStartHooks.Insert("rbac/bootstrap-roles", "scheduling/bootstrap-system-priority-classes")
}
