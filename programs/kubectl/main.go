// Command kubectl is upstream's kubectl, unchanged. Its main package lives in
// k8s.io/kubernetes, which would make this module require the whole tree;
// these lines do the same from the published libraries.
package main

import (
	"os"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubeconfigs of other clusters
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	// The flag set's -v must work before cobra has parsed anything.
	logs.GlogSetter(cmd.GetLogVerbosity(os.Args)) // nolint:errcheck // as upstream: no level, no verbosity
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
