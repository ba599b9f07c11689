package control

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/pkg/controlplane/controller/kubernetesservice"
)

// publishAPI returns a function that gives the Service default/kubernetes its
// endpoints. Upstream does so up to 100 ms after kube-apiserver is ready; a pod that
// asks the API before then is refused. The function calls upstream's own controller,
// only earlier. The function must not be called before kube-apiserver is ready:
// until then upstream removes what an earlier run may have left.
func publishAPI(config app.CompletedConfig, loop *loopback) (func(context.Context) error, error) {
	client, err := kubernetes.NewForConfig(loop.config(managedBy))
	if err != nil {
		return nil, fmt.Errorf("make the client for the API's Service: %w", err)
	}
	apis := config.KubeAPIs
	_, port, err := apis.ControlPlane.Generic.SecureServing.HostPort()
	if err != nil {
		return nil, fmt.Errorf("read the API's port: %w", err)
	}
	controller := kubernetesservice.New(kubernetesservice.Config{
		PublicIP:           apis.ControlPlane.Generic.PublicAddress,
		EndpointReconciler: apis.Extra.EndpointReconcilerConfig.Reconciler,
		ServiceIP:          apis.Extra.APIServerServiceIP,
		ServicePort:        apis.Extra.APIServerServicePort,
		PublicServicePort:  port,
	}, client, apis.ControlPlane.VersionedInformers.Core().V1().Services())
	const reconcile = false // do not change an existing Service
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, addonTimeout)
		defer cancel()
		return retry(ctx, "publish the API", func() error { return controller.UpdateKubernetesService(reconcile) })
	}, nil
}
