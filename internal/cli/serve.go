package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth.dev/berth/internal/access/interlink"
	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/base/exitcode"
)

func newServeCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "serve",
		Short: "Serve other systems that send work to your cluster",
		Long:  `Serves other systems that send work to the cluster in your job.`,
		Args:  noArguments,
		RunE:  func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(newServeInterlinkCommand())
	return command
}

// interlinkFlags holds the flags of berth serve interlink.
type interlinkFlags struct {
	socket, listen, level string
	files                 interlink.TLSFiles
}

func newServeInterlinkCommand() *cobra.Command {
	f := interlinkFlags{level: "baseline"}
	command := &cobra.Command{
		Use:   "interlink [flags] [JOB]",
		Short: "Run the pods of another Kubernetes, which interLink's virtual node sends",
		Long: `Serves the plugin API of interLink: the virtual node of an existing Kubernetes
sends pods, and they run in the berth cluster of JOB. Without JOB, it is your only
cluster, and after its end the next one that you start.

With --socket, interLink's API server on this host calls it as its plugin. With
--listen, the virtual node calls it directly, over TLS with a client certificate.
Whoever can call it can run containers as you, within the Pod Security level.

It keeps no state, so you can stop and restart it at any time.`,
		Example: `  berth serve interlink --socket ~/.interlink/login.sock
  berth serve interlink 4711 --listen :3000 --tls-cert server.pem \
      --tls-key server.key --client-ca nodes.pem`,
		Args: atMostAJob,
		RunE: func(command *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return &usageError{err}
			}
			job, _ := takeJob(args)
			place, err := newPlace()
			if err != nil {
				return err
			}
			listener, err := f.open()
			if err != nil {
				return err
			}
			defer listener.Close()
			host, err := os.Hostname()
			if err != nil {
				return fmt.Errorf("find the name of this host: %w", err)
			}
			log := slog.New(newLines(command.ErrOrStderr(), verbosity{}))
			log.Info("listening for interLink on " + listener.Addr().String())
			return interlink.New(&clusterFinder{place, job}, f.level, host, log).Serve(command.Context(), listener)
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.socket, "socket", "", "listen on this unix socket, as the plugin of interLink's API server")
	flags.StringVar(&f.listen, "listen", "", "listen on this `address`, as the API server of a virtual node")
	flags.StringVar(&f.files.Cert, "tls-cert", "", "PEM `file` with the certificate of the server")
	flags.StringVar(&f.files.Key, "tls-key", "", "PEM `file` with its private key")
	flags.StringVar(&f.files.ClientCA, "client-ca", "", "PEM `file` with the CA certificate of clients; each client with a certificate of this CA can run containers as you")
	flags.StringVar(&f.level, "pod-security", f.level, "Pod Security `level` of the pods: privileged, baseline or restricted")
	return command
}

// check returns all errors in the flags.
func (f *interlinkFlags) check() error {
	var problems []error
	tls := []string{f.files.Cert, f.files.Key, f.files.ClientCA}
	switch {
	case f.socket == "" && f.listen == "":
		problems = append(problems, errors.New("give --socket PATH, or --listen ADDRESS with --tls-cert, --tls-key and --client-ca"))
	case f.socket != "" && f.listen != "":
		problems = append(problems, errors.New("--socket and --listen exclude each other: start two servers"))
	case f.listen != "" && slices.Contains(tls, ""):
		problems = append(problems, errors.New("--listen needs --tls-cert, --tls-key and --client-ca: without them, everyone could run containers as you"))
	case f.socket != "" && slices.ContainsFunc(tls, func(file string) bool { return file != "" }):
		problems = append(problems, errors.New("--tls-cert, --tls-key and --client-ca belong to --listen"))
	}
	if !slices.Contains([]string{"privileged", "baseline", "restricted"}, f.level) {
		problems = append(problems, fmt.Errorf("--pod-security %s: give privileged, baseline or restricted", f.level))
	}
	return errors.Join(problems...)
}

// open opens the listener that the flags select.
func (f *interlinkFlags) open() (listener net.Listener, err error) {
	if f.socket != "" {
		listener, err = interlink.ListenUnix(f.socket)
	} else {
		listener, err = interlink.ListenTLS(f.listen, f.files)
	}
	return listener, exitcode.Wrap(exitcode.Unavailable, err)
}

// clusterFinder is the interlink.Finder of a job's cluster. If job is empty, it finds the
// user's only cluster.
type clusterFinder struct {
	place *login.Place
	job   string
}

// Connect implements interlink.Finder.
func (c *clusterFinder) Connect(ctx context.Context, job string) (*interlink.Cluster, error) {
	session, err := connect(ctx, c.place, cmp.Or(job, c.job))
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", session.Kubeconfig)
	if err != nil {
		session.Close()
		return nil, fmt.Errorf("read the cluster's kubeconfig: %w", err)
	}
	config.QPS = -1 // no limit: the API server has its own
	config.UserAgent = "berth"
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		session.Close()
		return nil, fmt.Errorf("make a client of the cluster: %w", err)
	}
	return &interlink.Cluster{API: client.CoreV1(), Job: session.Target.String(), Lost: session.Lost(), Close: session.Close}, nil
}

// Ended implements interlink.Finder.
func (c *clusterFinder) Ended(ctx context.Context, job string) string {
	return c.place.EndedJob(ctx, job)
}
