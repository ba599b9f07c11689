package process

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/slurmjobs/controller"
	"berth.dev/berth/internal/slurmjobs/joblog"
	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/partitions"
)

// PodLogs configures the server that API servers ask for the logs of pods.
type PodLogs struct {
	// Listener accepts the connections, and Address leads to it from the API servers.
	Listener net.Listener
	Address  netip.AddrPort
	// Certificate is the server's. Authority has signed the API servers' certificate, in PEM,
	// whose common name is Client.
	Certificate tls.Certificate
	Authority   []byte
	Client      string
}

// sealName names the file with the key for paths of outputs, in the folder for records of jobs. No
// folder of an object begins with a dot.
const sealName = ".output-key"

// shown shows partitions and jobs. It is the zero value if they are not shown.
type shown struct {
	server *partitions.Server
	log    *joblog.Server
	logs   *PodLogs
}

// show prepares what PartitionNodes and PodLogs ask for, and adds it to the options of the
// controller. name is in the names of Nodes.
func (o Options) show(ctx context.Context, options *controller.Options, name string, env []string) (shown, error) {
	if !o.PartitionNodes {
		return shown{}, nil
	}
	shownOptions := partitions.Default()
	shownOptions.Config, shownOptions.Namespace, shownOptions.Host, shownOptions.Owner, shownOptions.Log = o.Config, o.Namespace, name, options.LeaseNamespace, o.Log
	shownOptions.Ask = slurm.AskLongWith(queue.JobEnv(env))
	if o.PodLogs != nil {
		shownOptions.Logs = o.PodLogs.Address
	}
	server, err := partitions.New(shownOptions)
	if err != nil {
		return shown{}, err
	}
	if err := server.Check(ctx); err != nil {
		return shown{}, partitions.Explain("show partitions as nodes", err)
	}
	options.Beside, options.Changed, options.PodProblem = server.Run, server.Changed, server.Problem
	s := shown{server: server, logs: o.PodLogs}
	if o.PodLogs == nil {
		return s, nil
	}
	sealer, err := joblog.NewSealer(filepath.Join(o.State, sealName))
	if err != nil {
		return shown{}, err
	}
	options.Seal = sealer.Seal
	s.log = &joblog.Server{
		Certificate: o.PodLogs.Certificate, Authority: o.PodLogs.Authority, Client: o.PodLogs.Client,
		Roots: o.Roots, Interval: logInterval, Log: o.Log,
		Job: func(namespace, pod, container string) (joblog.Job, error) {
			object := server.Shown(namespace, pod)
			if object == nil || container != partitions.JobContainer {
				return joblog.Job{}, fmt.Errorf("container %s of pod %s/%s shows no Slurm job that is served here", container, namespace, pod)
			}
			return jobOf(object, sealer)
		},
	}
	return s, nil
}

// connect makes a controller's objects the source of the shown jobs. The controller does not run yet.
func (s shown) connect(c *controller.Controller) {
	if s.server != nil {
		s.server.Jobs = partitions.Jobs{Object: c.Object, All: c.References}
	}
}

// serve serves logs until ctx ends. Then it returns nil.
func (s shown) serve(ctx context.Context) error {
	if s.log == nil {
		return nil
	}
	return s.log.Serve(ctx, s.logs.Listener)
}

// jobOf returns the job of an object. It returns an error for a path of the output that no controller
// with the sealer's key has written.
func jobOf(object *unstructured.Unstructured, sealer joblog.Sealer) (joblog.Job, error) {
	status, err := kinds.StatusOf(object)
	if err != nil {
		return joblog.Job{}, err
	}
	if status.Output != "" && !sealer.Valid(string(object.GetUID()), status.Output, status.OutputSeal) {
		return joblog.Job{}, fmt.Errorf("somebody else, or an earlier controller, wrote status.output of %s %s: read the output with 'berth slurm-jobs logs'", object.GetKind(), object.GetName())
	}
	return joblog.Job{Name: "job " + status.JobID, State: status.State, Ended: kinds.Ended(status.State), Output: status.Output}, nil
}
