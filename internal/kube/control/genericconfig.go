package control

import (
	"context"
	"fmt"
	"time"

	nooptrace "go.opentelemetry.io/otel/trace/noop"
	extensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver"

	"berth.dev/berth/internal/kube/usage"
)

// newConfig replaces app.NewConfig. Upstream's function generates two RSA keys for a
// certificate that only this process uses. That takes 60 to 300 ms of CPU time and cannot
// be disabled. The upstream function around it only combines exported functions. So
// newConfig combines them itself, with a key that takes 0.1 ms to generate.
// TestGenericConfigMatchesUpstream compares the result with upstream's.
func newConfig(opts options.CompletedOptions, loopback *loopback) (*app.Config, error) {
	generic, versioned, storage, err := newGenericConfig(opts, loopback)
	if err != nil {
		return nil, err
	}
	apis, resolver, plugins, err := app.CreateKubeAPIServerConfig(opts, generic, versioned, storage)
	if err != nil {
		return nil, fmt.Errorf("configure kube-apiserver: %w", err)
	}
	base := *apis.ControlPlane.Generic
	extensions, err := controlplaneapiserver.CreateAPIExtensionsConfig(
		base, apis.ControlPlane.VersionedInformers, plugins, opts.CompletedOptions, opts.MasterCount, resolver,
		webhook.NewDefaultAuthenticationInfoResolverWrapper(
			apis.ControlPlane.ProxyTransport, base.EgressSelector, base.LoopbackClientConfig, base.TracerProvider))
	if err != nil {
		return nil, fmt.Errorf("configure the server of custom resources: %w", err)
	}
	aggregator, err := controlplaneapiserver.CreateAggregatorConfig(
		base, opts.CompletedOptions, apis.ControlPlane.VersionedInformers, resolver,
		apis.ControlPlane.ProxyTransport, apis.ControlPlane.Extra.PeerProxy, plugins)
	if err != nil {
		return nil, fmt.Errorf("configure the aggregator: %w", err)
	}
	return &app.Config{Options: opts, KubeAPIs: apis, ApiExtensions: extensions, Aggregator: aggregator}, nil
}

// newGenericConfig replaces controlplaneapiserver.BuildGenericConfig.
func newGenericConfig(opts options.CompletedOptions, loopback *loopback) (
	*server.Config, informers.SharedInformerFactory, *serverstorage.DefaultStorageFactory, error,
) {
	fail := func(what string, err error) (
		*server.Config, informers.SharedInformerFactory, *serverstorage.DefaultStorageFactory, error,
	) {
		return nil, nil, nil, fmt.Errorf("configure kube-apiserver: apply %s: %w", what, err)
	}
	config := server.NewConfig(legacyscheme.Codecs)
	config.Flagz = opts.Flagz
	resources := controlplane.DefaultAPIResourceConfigSource()
	config.MergedResourceConfig = resources

	if err := opts.GenericServerRunOptions.ApplyTo(config); err != nil {
		return fail("server options", err)
	}
	if err := opts.SecureServing.SecureServingOptions.ApplyTo(&config.SecureServing); err != nil {
		return fail("serving options", err)
	}
	if err := loopback.applyTo(config); err != nil {
		return fail("loopback client", err)
	}
	client, err := kubernetes.NewForConfig(config.LoopbackClientConfig)
	if err != nil {
		return fail("loopback client", err)
	}
	versioned := informers.NewSharedInformerFactoryWithOptions(client, 10*time.Minute,
		informers.WithTransform(withoutManagedFields))

	if err := opts.Features.ApplyTo(config, client, versioned); err != nil {
		return fail("features", err)
	}
	if err := opts.APIEnablement.ApplyTo(config, resources, legacyscheme.Scheme); err != nil {
		return fail("enabled APIs", err)
	}
	if err := opts.EgressSelector.ApplyTo(config); err != nil {
		return fail("egress selector", err)
	}
	if err := opts.Traces.ApplyTo(config.EgressSelector, config); err != nil {
		return fail("tracing", err)
	}

	definitions := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(legacyscheme.Scheme, extensionsapiserver.Scheme, aggregatorscheme.Scheme, usage.NewScheme())
	config.OpenAPIConfig = server.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIConfig.Info.Title = "Kubernetes"
	config.OpenAPIV3Config = server.DefaultOpenAPIV3Config(definitions, namer)
	config.OpenAPIV3Config.Info.Title = "Kubernetes"

	config.LongRunningFunc = filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"))

	opts.Etcd.StorageConfig.Transport.TracerProvider = config.TracerProvider
	if config.TracerProvider == nil {
		opts.Etcd.StorageConfig.Transport.TracerProvider = nooptrace.NewTracerProvider()
	}
	storageConfig := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(config.EffectiveVersion)
	storageConfig.APIResourceConfig = config.MergedResourceConfig
	storageConfig.DefaultResourceEncoding.SetEffectiveVersion(config.EffectiveVersion)
	storage, err := storageConfig.Complete(opts.Etcd).New()
	if err != nil {
		return fail("storage options", err)
	}
	storage.StorageConfig.StorageObjectCountTracker = config.StorageObjectCountTracker
	if err := opts.Etcd.ApplyWithStorageFactoryTo(storage, config); err != nil {
		return fail("storage options", err)
	}

	drained := wait.ContextForChannel(config.DrainedNotify())
	if err := applyAccess(drained, opts, config, client, versioned); err != nil {
		return nil, nil, nil, err
	}
	if err := opts.Audit.ApplyTo(config); err != nil {
		return fail("audit options", err)
	}
	config.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	return config, versioned, storage, nil
}

// applyAccess configures authentication and authorization. The authorizer is behind a gate.
func applyAccess(ctx context.Context, opts options.CompletedOptions, config *server.Config,
	client kubernetes.Interface, versioned informers.SharedInformerFactory,
) error {
	if err := opts.Authentication.ApplyTo(ctx, &config.Authentication, config.SecureServing,
		config.EgressSelector, config.OpenAPIConfig, config.OpenAPIV3Config,
		client, versioned, config.APIServerID); err != nil {
		return fmt.Errorf("configure kube-apiserver: apply authentication: %w", err)
	}
	var err error
	config.Authorization.Authorizer, config.RuleResolver, _, err = controlplaneapiserver.BuildAuthorizer(
		ctx, opts.CompletedOptions, config.EgressSelector, config.APIServerID, versioned)
	if err != nil {
		return fmt.Errorf("configure kube-apiserver: apply authorization: %w", err)
	}
	gate := newGate(config.Authorization.Authorizer)
	config.Authorization.Authorizer = gate
	config.RuleResolver = gatedRules{config.RuleResolver, gate}
	return nil
}

// withoutManagedFields removes the managed fields from an object in the caches of the
// server's own informers. The server never reads them there, and they are more than half
// of many objects.
func withoutManagedFields(object any) (any, error) {
	if m, err := meta.Accessor(object); err == nil && m.GetManagedFields() != nil {
		m.SetManagedFields(nil)
	}
	return object, nil
}
