// Command berth starts a Kubernetes cluster inside a Slurm job.
package main

import (
	"os"

	"berth.dev/berth/internal/access/jobend"
	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/cli"
	"berth.dev/berth/internal/launch"
	"berth.dev/berth/internal/launch/command"
	"berth.dev/berth/internal/launch/netrole"
	"berth.dev/berth/internal/launch/proof"
)

func main() {
	// The program starts itself again for its other roles. They are handled first,
	// because they do not need the command line.
	if len(os.Args) > 2 && os.Args[1] == launch.BalancerArg {
		os.Exit(launch.Balancer(os.Args[2:]))
	}
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case netrole.Arg:
			os.Exit(netrole.Main())
		case launch.FollowArg:
			os.Exit(launch.FollowRole())
		case launch.CleanerArg:
			os.Exit(launch.CleanerRole())
		case launch.SlurmJobsArg:
			os.Exit(launch.SlurmJobsRole())
		case launch.ElasticArg:
			os.Exit(launch.ElasticRole())
		case command.ParentArg:
			os.Exit(command.ParentMain())
		case launch.PersistentParentArg:
			os.Exit(cli.PersistentParent())
		case proof.RelayArg:
			os.Exit(proof.Relay())
		case probe.FUSEArg:
			os.Exit(probe.TryFUSE(os.Stdout))
		case login.TunnelServerArg:
			os.Exit(login.TunnelServer())
		case jobend.Arg:
			os.Exit(jobend.Main())
		}
	}
	os.Exit(cli.Main(os.Args[1:]))
}
