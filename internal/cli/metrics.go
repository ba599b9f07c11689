package cli

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/base/metrics"
)

func newMetricsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "metrics [JOB]",
		Short: "Print the metrics of a cluster, for Prometheus",
		Long: `Prints what the nodes of a cluster measure, in the text format of Prometheus:
memory and processor time of berth, of nodes, pods and containers, the traffic
and drops of the network between the nodes and to the outside, and the time that
the start took. Prometheus inside the cluster can read the same at port 10247 of
each node.

Without JOB, inside 'berth run' it means that run's cluster. Outside Slurm it
means the cluster of this machine, if there is only one.`,
		Args: atMostAJob,
		RunE: func(command *cobra.Command, args []string) error {
			job, _ := takeJob(args)
			return withCluster(command.Context(), job, func(api *login.API, _ *login.Session) error {
				pages, err := readMetrics(command.Context(), api)
				if err != nil {
					return err
				}
				return metrics.Merge(command.OutOrStdout(), pages...)
			})
		},
	}
}

// withCluster calls do with the API of the cluster of a job, or of
// LocalAPI's cluster if job is empty, and with the session, if one is needed. If do
// fails and the tunnel was lost, the error is the loss of the tunnel.
func withCluster(ctx context.Context, job string, do func(*login.API, *login.Session) error) error {
	if job == "" {
		api, err := login.LocalAPI(os.Getenv)
		if err != nil {
			return err
		}
		if api != nil {
			defer api.Close()
			return do(api, nil)
		}
	}
	session, err := reach(ctx, job)
	if err != nil {
		return err
	}
	defer session.Close()
	api, err := session.API()
	if err != nil {
		return err
	}
	defer api.Close()
	err = do(api, session)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if lost := session.Check(); lost != nil {
		return lost
	}
	return err
}

// readMetrics reads the pages of all nodes: berth's own, and the kubelet's of its
// pods. It omits nodes that do not answer, and names them on standard error.
func readMetrics(ctx context.Context, api *login.API) ([]string, error) {
	var nodes struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	if err := api.Get(ctx, "/api/v1/nodes", &nodes); err != nil {
		return nil, err
	}
	pages := make([]string, len(nodes.Items))
	problems := make([]error, len(nodes.Items))
	var reading sync.WaitGroup
	for i, node := range nodes.Items {
		name := node.Metadata.Name
		reading.Go(func() {
			page, err := api.Text(ctx, metrics.Path(name))
			if err != nil {
				problems[i] = fmt.Errorf("read the metrics of node %s: %w", name, err)
				return
			}
			pods, err := api.Text(ctx, "/api/v1/nodes/"+name+"/proxy/metrics/resource")
			if err != nil {
				problems[i] = fmt.Errorf("read the metrics of the pods on node %s: %w", name, err)
			}
			pages[i] = page + metrics.Label(metrics.Only(pods, "container_", "pod_", "node_"), "node", name)
		})
	}
	reading.Wait()
	silent := 0
	for _, problem := range problems {
		if problem != nil {
			silent++
			fmt.Fprintln(os.Stderr, "berth: warning:", problem)
		}
	}
	if silent > 0 && silent == len(nodes.Items) {
		return nil, problems[0]
	}
	return pages, nil
}
