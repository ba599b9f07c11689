package cli

import (
	"errors"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"berth.dev/berth/internal/launch"
)

// existingFlags holds the flags of a run on an existing cluster.
type existingFlags launch.Existing

func (e *existingFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&e.Kubeconfig, "kubeconfig", "", "run the manifests on the existing cluster of a kubeconfig `file`, instead of starting a cluster")
	flags.StringVar(&e.Namespace, "namespace", "", "`namespace` of the existing cluster (default: the kubeconfig's)")
	flags.BoolVar(&e.Pin, "pin", false, "place the pods on the nodes of the existing cluster that have the names of the job's hosts")
}

// absolute makes the path of the kubeconfig absolute. It returns an error if the path is empty
// although the flag is given, as with the value of a variable that is not set.
func (e *existingFlags) absolute(given []string) (err error) {
	switch {
	case e.Kubeconfig != "":
		e.Kubeconfig, err = filepath.Abs(e.Kubeconfig)
	case slices.Contains(given, "kubeconfig"):
		err = &usageError{errors.New("--kubeconfig is empty: give the path of a file, or omit it to start a cluster")}
	}
	return err
}

// arguments returns the flag with the path of the kubeconfig, for the command line in a batch
// script. It returns nil if there is none.
func (e *existingFlags) arguments() []string {
	if e.Kubeconfig == "" {
		return nil
	}
	return []string{"--kubeconfig=" + e.Kubeconfig}
}
