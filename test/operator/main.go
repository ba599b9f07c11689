// Command operator keeps a ConfigMap for every Greeting: a controller written
// with controller-runtime, as operators are. It is for a test.
package main

import (
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "operator:", err)
		os.Exit(1)
	}
}

func run() error {
	ctrl.SetLogger(zap.New())
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	scheme.AddKnownTypes(version, &Greeting{}, &GreetingList{})
	addMeta(scheme)
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                 scheme,
		HealthProbeBindAddress: ":8081",
		LeaderElection:         true,
		LeaderElectionID:       "greetings.test.berth.dev",
	})
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	if err := manager.AddReadyzCheck("ready", healthz.Ping); err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(manager).For(&Greeting{}).Owns(&corev1.ConfigMap{}).Complete(&reconciler{manager.GetClient(), scheme})
	if err != nil {
		return fmt.Errorf("make the controller: %w", err)
	}
	return manager.Start(ctrl.SetupSignalHandler())
}
