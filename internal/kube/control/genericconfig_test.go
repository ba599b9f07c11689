package control

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	extensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/server"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
)

// TestGenericConfigMatchesUpstream fails when upstream configures something that
// newGenericConfig forgets, as it may after an upgrade.
func TestGenericConfigMatchesUpstream(t *testing.T) {
	c := newTestCluster(t)
	complete := func() options.CompletedOptions {
		opts, err := parseAPIServerOptions(c.plan, c.listeners[0])
		if err != nil {
			t.Fatal(err)
		}
		completed, err := opts.Complete(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return completed
	}
	theirs, _, theirStorage, err := controlplaneapiserver.BuildGenericConfig(complete().CompletedOptions,
		[]*runtime.Scheme{legacyscheme.Scheme, extensionsapiserver.Scheme, aggregatorscheme.Scheme},
		controlplane.DefaultAPIResourceConfigSource(), generatedopenapi.GetOpenAPIDefinitions)
	if err != nil {
		t.Fatal(err)
	}
	loop, err := newLoopback(c.listeners[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	ours, _, ourStorage, err := newGenericConfig(complete(), loop)
	if err != nil {
		t.Fatal(err)
	}
	sameFields(t, "server", reflect.ValueOf(*ours), reflect.ValueOf(*theirs))
	sameFields(t, "serving", reflect.ValueOf(*ours.SecureServing), reflect.ValueOf(*theirs.SecureServing))
	sameFields(t, "loopback client", reflect.ValueOf(*ours.LoopbackClientConfig), reflect.ValueOf(*theirs.LoopbackClientConfig),
		"UserAgent")
	sameFields(t, "storage", reflect.ValueOf(*ourStorage), reflect.ValueOf(*theirStorage))
	sameFields(t, "storage backend", reflect.ValueOf(ourStorage.StorageConfig), reflect.ValueOf(theirStorage.StorageConfig))
	sameNames(t, "hooks", slices.Collect(maps.Keys(ours.PostStartHooks)), slices.Collect(maps.Keys(theirs.PostStartHooks)))
	sameNames(t, "disabled hooks", ours.DisabledPostStartHooks.List(), theirs.DisabledPostStartHooks.List())
	sameNames(t, "health checks", checkNames(ours), checkNames(theirs))
	if len(ours.SecureServing.SNICerts) != len(theirs.SecureServing.SNICerts) {
		t.Errorf("%d named certificates, upstream has %d", len(ours.SecureServing.SNICerts), len(theirs.SecureServing.SNICerts))
	}
}

// sameFields checks that ours sets the fields that theirs sets.
func sameFields(t *testing.T, what string, ours, theirs reflect.Value, except ...string) {
	t.Helper()
	for i := range theirs.NumField() {
		name := theirs.Type().Field(i).Name
		if ours.Field(i).IsZero() != theirs.Field(i).IsZero() && !slices.Contains(except, name) {
			t.Errorf("%s: field %s: unset %v, in upstream's %v", what, name, ours.Field(i).IsZero(), theirs.Field(i).IsZero())
		}
	}
}

func sameNames(t *testing.T, what string, ours, theirs []string) {
	t.Helper()
	slices.Sort(ours)
	slices.Sort(theirs)
	if !slices.Equal(ours, theirs) {
		t.Errorf("%s: %v, upstream has %v", what, ours, theirs)
	}
}

// checkNames leaves out the check that the certificate of the loopback client,
// valid for a year, has not expired.
func checkNames(config *server.Config) []string {
	var names []string
	for _, check := range config.LivezChecks {
		if check.Name() != "loopback-serving-certificate" {
			names = append(names, "livez/"+check.Name())
		}
	}
	for _, check := range config.ReadyzChecks {
		names = append(names, "readyz/"+check.Name())
	}
	return names
}
