package cli

import (
	"path/filepath"

	"github.com/spf13/pflag"

	"berth.dev/berth/internal/launch"
)

// existingFlags holds the flags for a run on an existing cluster.
type existingFlags launch.Existing

func (e *existingFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&e.Kubeconfig, "kubeconfig", "", "start no cluster, and run the manifests on the existing one of a kubeconfig `file`")
	flags.StringVar(&e.Namespace, "namespace", "", "`namespace` of the existing cluster (default: the kubeconfig's)")
	flags.BoolVar(&e.Pin, "pin", false, "place the pods on the nodes of the existing cluster that have the names of the job's hosts")
}

// absolute makes the path independent of the working directory.
func (e *existingFlags) absolute() (err error) {
	if e.Kubeconfig != "" {
		e.Kubeconfig, err = filepath.Abs(e.Kubeconfig)
	}
	return err
}

// arguments returns the argument with the path, for a batch script.
func (e *existingFlags) arguments() []string {
	if e.Kubeconfig == "" {
		return nil
	}
	return []string{"--kubeconfig=" + e.Kubeconfig}
}
