package berthd

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/site/berthd/etcd"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

const usage = `berthd is the daemon of the site network of berth. It runs as root on every node.

  berthd run [--node NAME]          run the daemon of this node
  berthd etcd --host ADDRESS ...    run a member of etcd, if the site has no etcd
  berthd keys VERB [NODES]          make keys for etcd and nodes, and etcd's roles for nodes
  berthd check                      check the configuration, and what it names
  berthd status                     list the pods of this node
  berthd name [--job JOB] [NAME...] set the names of your job, below the job's own name;
                                    names of 'berth run --publish NAME=PORT' stay
  berthd healthcheck [--node NAME]  drain this node in Slurm if its jobs would get no network, or
                                    the hosts'; for HealthCheckProgram and Prolog
  berthd doctor [--node NAME]       list what is missing on this node, and the remedies

All accept --config FILE (` + siteconf.ConfigPath + `).
`

// Main runs the command line of berthd, and returns the exit code.
func Main(ctx context.Context, args []string) int {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	commands := map[string]func(context.Context, *flag.FlagSet, []string) error{
		"run": runCommand, "etcd": etcdCommand, "check": checkCommand, "status": statusCommand,
		"doctor": doctorCommand, "name": nameCommand, "keys": keysCommand, "healthcheck": healthcheckCommand,
	}
	command, known := commands[args[0]]
	if !known {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	flags := flag.NewFlagSet("berthd "+args[0], flag.ExitOnError)
	err := command(ctx, flags, args[1:])
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "berthd:", err)
	if errors.As(err, new(*wrongConfiguration)) {
		// The units know this code: restarting berthd changes nothing until somebody corrects its
		// configuration. (Code 2 is also that of a Go panic.)
		return exitcode.Config
	}
	return 1
}

type wrongConfiguration struct{ error }

func (w *wrongConfiguration) Unwrap() error { return w.error }

// configOf adds --config, parses the arguments and loads the configuration. An invalid
// configuration is a *wrongConfiguration.
func configOf(flags *flag.FlagSet, args []string) (siteconf.Config, error) {
	path := flags.String("config", siteconf.ConfigPath, "the configuration of the site network")
	if err := flags.Parse(args); err != nil {
		return siteconf.Config{}, err
	}
	config, err := siteconf.Load(*path)
	if err != nil {
		return config, &wrongConfiguration{err}
	}
	return config, nil
}

// nodeOf works like configOf with --node. It also returns the name of the node.
func nodeOf(flags *flag.FlagSet, args []string) (siteconf.Config, string, error) {
	node := flags.String("node", os.Getenv("SLURMD_NODENAME"), "Slurm's name of this node (default: its host name)")
	config, err := configOf(flags, args)
	if err != nil || *node != "" {
		return config, *node, err
	}
	name, err := os.Hostname()
	if err != nil {
		return config, "", fmt.Errorf("ask for the name of this host: %w", err)
	}
	return config, name, nil
}

func doctorCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	config, node, err := nodeOf(flags, args)
	if err != nil {
		return err
	}
	return doctor(ctx, os.Stdout, nodeChecks(config, node))
}

// healthcheckCommand runs 'berthd healthcheck'. slurmd gives a HealthCheckProgram no PATH.
func healthcheckCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	config, node, problem := nodeOf(flags, args)
	if node == "" {
		node, _ = os.Hostname()
	}
	path := cmp.Or(os.Getenv("PATH"), "/usr/sbin:/usr/bin:/sbin:/bin")
	if filepath.IsAbs(config.Squeue) {
		path = filepath.Dir(config.Squeue) + ":" + path
	}
	if err := os.Setenv("PATH", path); err != nil {
		return err
	}
	if problem == nil {
		problem = healthcheck(ctx, config, os.Getenv("SLURM_JOB_ID") != "")
	}
	return checkService(ctx, cmp.Or(config.Run, siteconf.Default().Run), node, problem)
}

func runCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	config, node, err := nodeOf(flags, args)
	if err != nil {
		return err
	}
	if !config.ByCNI() {
		warnOfPorts(config)
	}
	// Most of berthd's time is spent waiting for the kernel or etcd. With more than
	// one P, Go's idle threads that look for work cost more than the work, on nodes
	// whose cores are for jobs.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	return run(ctx, config, node, slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

func etcdCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	var member etcd.Member
	flags.StringVar(&member.Name, "name", "default", "name of this member")
	flags.StringVar(&member.Dir, "data", "/var/lib/berth/etcd", "directory of its data")
	flags.StringVar(&member.Host, "host", "", "address of this host")
	flags.StringVar(&member.Cluster, "cluster", "", "all members: NAME=https://HOST:2380,...")
	flags.BoolVar(&member.Join, "join", false, "start with empty data in a cluster that runs, after 'etcdctl member add'")
	flags.StringVar(&member.HTTP, "http", etcd.DefaultHTTP, "address and port for HTTP, as metrics; empty for port 2379 of --host, beside gRPC")
	flags.StringVar(&member.Cert, "cert", "", "file of its certificate (default: etcd.cert of the configuration)")
	flags.StringVar(&member.Key, "key", "", "file of its key (default: etcd.key of the configuration)")
	config, err := configOf(flags, args)
	if err != nil {
		return err
	}
	member.Cert, member.Key = cmp.Or(member.Cert, config.Etcd.Cert), cmp.Or(member.Key, config.Etcd.Key)
	if member.Host == "" {
		return &wrongConfiguration{errors.New("start etcd: give --host, the address where nodes reach it")}
	}
	if member.Cluster == "" {
		member.Cluster = fmt.Sprintf("%s=https://%s:2380", member.Name, member.Host)
	}
	return etcd.Run(ctx, config.Etcd, member)
}

func checkCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	config, err := configOf(flags, args)
	if err != nil {
		return err
	}
	if !config.ByCNI() {
		warnOfPorts(config)
	}
	return doctor(ctx, os.Stdout, siteChecks(config))
}

// warnOfPorts prints a warning if users can open the ports of tunnels. It is no error,
// because a site may have reasons for its choice.
func warnOfPorts(config siteconf.Config) {
	if err := portsOfRoot(unprivileged, config.Tunnel.Port); err != nil {
		fmt.Fprintln(os.Stderr, "berthd: warning: ports of tunnels:", err)
	}
}

// nameCommand runs 'berthd name', which users call in their jobs.
func nameCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	job := flags.String("job", os.Getenv("SLURM_JOB_ID"), "number of a job that runs on this node")
	config, err := configOf(flags, args)
	if err != nil {
		return err
	}
	if *job == "" {
		return fmt.Errorf("name a job: this shell is not in a job: give --job")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*store.Limit)
	defer cancel()
	question := siteconf.Message{Verb: siteconf.VerbName, Fields: map[string]string{"job": *job, "names": strings.Join(flags.Args(), ",")}}
	_, _, err = siteconf.Ask(ctx, config.Run, question)
	return err
}

func statusCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	config, err := configOf(flags, args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer, _, err := siteconf.Ask(ctx, config.Run, siteconf.Message{Verb: siteconf.VerbStatus})
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s\n", answer.Fields["node"], answer.Fields["pods"])
	return nil
}
