// Package kubectl is upstream's kubectl. Its main package lives in
// k8s.io/kubernetes; these lines do the same from the published libraries.
//
// One thing differs: the ports that port-forward and proxy open on the loopback
// serve only the user who opened them, because login hosts and nodes of a Slurm
// cluster have many users (forward.go, proxy.go).
package kubectl

import (
	"os"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubeconfigs of other clusters
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	"k8s.io/kubectl/pkg/cmd/util"

	"berth.dev/berth/internal/access/kubectl/translations"
)

// Started reports whether this process was started under the name kubectl.
func Started() bool { return translations.Wanted }

// Main runs kubectl with the arguments of this process.
func Main() {
	// The flag set's -v must work before cobra has parsed anything.
	logs.GlogSetter(cmd.GetLogVerbosity(os.Args)) // nolint:errcheck // as upstream: no level, no verbosity
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	// These are the settings of upstream's default command.
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().
		WithDiscoveryBurst(300).WithDiscoveryQPS(50).WithWarningPrinter(streams)
	command := cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     os.Args,
		ConfigFlags:   flags,
		IOStreams:     streams,
	})
	factory := util.NewFactory(util.NewMatchVersionFlags(flags))
	for _, own := range command.Commands() {
		switch own.Name() {
		case "port-forward":
			own.Run = forward(factory, streams)
		case "proxy":
			own.Run = proxy(factory, streams)
		}
	}
	if err := cli.RunNoErrOutput(command); err != nil {
		util.CheckErr(err)
	}
}
