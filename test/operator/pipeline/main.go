// Command pipeline runs pipelines of pods and SlurmJobs: a workflow engine
// written with controller-runtime, as small as possible. It is for a test.
package main

import (
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pipeline:", err)
		os.Exit(1)
	}
}

func run() error {
	ctrl.SetLogger(zap.New())
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	pipelines := predicate.NewPredicateFuncs(func(object client.Object) bool {
		return object.GetLabels()["kind"] == "pipeline"
	})
	err = ctrl.NewControllerManagedBy(manager).
		For(&corev1.ConfigMap{}, builder.WithPredicates(pipelines)).
		Owns(newObject(podKind)).Owns(newObject(slurmJobKind)).
		Complete(&reconciler{manager.GetClient(), manager.GetScheme()})
	if err != nil {
		return fmt.Errorf("make the controller: %w", err)
	}
	return manager.Start(ctrl.SetupSignalHandler())
}
