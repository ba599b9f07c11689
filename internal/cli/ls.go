package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/base/metrics"
	"berth.dev/berth/internal/job/slurm"
)

// listed is a job as berth ls and berth status show it.
type listed struct {
	Job   string `json:"job"`
	Name  string `json:"name"`
	State string `json:"state"`
	Nodes int    `json:"nodes"`
	// Seconds is the time since the job began.
	Seconds int64 `json:"seconds"`
	// Left is the time until the job's limit. It is -1 without a limit.
	Left int64 `json:"secondsLeft"`
	// Cluster is "ready", "starting", "none", or "-" if the job does not run.
	Cluster string         `json:"cluster"`
	Version string         `json:"version,omitempty"`
	Head    string         `json:"head,omitempty"`
	Ready   []string       `json:"readyNodes,omitempty"`
	Unready []string       `json:"unreadyNodes,omitempty"`
	Lost    []string       `json:"lostNodes,omitempty"`
	Pods    map[string]int `json:"pods,omitempty"`
	Waiting map[string]int `json:"waiting,omitempty"`
	// Seats and FreeSeats count nodes of other jobs that the cluster takes. Pilots holds the jobs
	// that pods have brought.
	Seats     int           `json:"seats,omitempty"`
	FreeSeats int           `json:"freeSeats,omitempty"`
	Pilots    []login.Pilot `json:"pilots,omitempty"`
	// FastPath counts the outcomes of pods' connections, if the hosts make some.
	// It omits nodes that do not answer.
	FastPath map[string]int `json:"fastPath,omitempty"`
	// Snapshotters counts the nodes by snapshotter.
	Snapshotters map[string]int `json:"snapshotters,omitempty"`
}

func newListCommand() *cobra.Command {
	output := "text"
	command := &cobra.Command{
		Use:   "ls",
		Short: "List your jobs and the clusters in them",
		Long: `Lists your jobs that have not ended, with the state of the cluster in each
running job. For that it opens a Slurm step in each of them, sixteen at most.
The steps stay open for a while, so that the next command is faster.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			place, err := newPlace()
			if err != nil {
				return err
			}
			found, err := place.Clusters(command.Context())
			if err != nil {
				return err
			}
			rows := make([]listed, len(found))
			for i, f := range found {
				rows[i] = list(f)
				if f.Session != nil {
					f.Session.Close()
				}
			}
			if output == "json" {
				return writeJSON(command.OutOrStdout(), rows)
			}
			return writeTable(command.OutOrStdout(), rows)
		},
	}
	command.Flags().StringVarP(&output, "output", "o", output, "text or json")
	return command
}

func newStatusCommand() *cobra.Command {
	output := "text"
	command := &cobra.Command{
		Use:   "status [JOB]",
		Short: "Show the state of the cluster in a running job",
		Args:  atMostAJob,
		RunE: func(command *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			job, _ := takeJob(args)
			place, err := newPlace()
			if err != nil {
				return err
			}
			found, err := place.Cluster(command.Context(), job)
			if err != nil {
				return err
			}
			defer found.Session.Close()
			row := list(found)
			pages := pagesOf(command.Context(), found.Session, row.Ready)
			row.FastPath = sumOf(pages, metrics.FastPath, "outcome")
			row.Snapshotters = sumOf(pages, metrics.Info, "snapshotter")
			if output == "json" {
				return writeJSON(command.OutOrStdout(), row)
			}
			return writeStatus(command.OutOrStdout(), row)
		},
	}
	command.Flags().StringVarP(&output, "output", "o", output, "text or json")
	return command
}

// atMostAJob checks the arguments of a command that takes a job, for cobra.
func atMostAJob(_ *cobra.Command, args []string) error {
	switch {
	case len(args) > 1:
		return &usageError{fmt.Errorf("unexpected argument %q", args[1])}
	case len(args) == 1 && !login.IsJobName(args[0]):
		return &usageError{fmt.Errorf("%q is not a job: give a Slurm job or step id, such as 12, 12_3 or 12.0", args[0])}
	}
	return nil
}

func checkOutput(output string) error {
	if output != "text" && output != "json" {
		return &usageError{fmt.Errorf("unknown --output %q: it is text or json", output)}
	}
	return nil
}

func list(f login.Found) listed {
	row := listed{
		Job: f.Job.Name, Name: f.Job.JobName, State: f.Job.State, Nodes: f.Job.Nodes,
		Seconds: int64(f.Job.Elapsed / time.Second), Left: int64(f.Job.Left / time.Second),
	}
	if f.Job.Left < 0 {
		row.Left = -1
	}
	switch {
	case f.Job.State != slurm.Running:
		row.Cluster = "-"
	case f.Session == nil:
		row.Cluster = "none"
	case f.Err != nil:
		row.Cluster = "starting"
	default:
		row.Cluster = "ready"
	}
	if f.Session == nil {
		return row
	}
	row.Version, row.Head = f.Session.Version, f.Session.Node
	for _, node := range f.Summary.Nodes {
		switch {
		case node.Ready:
			row.Ready = append(row.Ready, node.Name)
		case node.Lost:
			row.Lost = append(row.Lost, node.Name)
		default:
			row.Unready = append(row.Unready, node.Name)
			row.Cluster = "starting"
		}
	}
	row.Pods, row.Waiting = f.Summary.Pods, f.Summary.Waiting
	row.Seats, row.FreeSeats, row.Pilots = f.Summary.Seats, f.Summary.FreeSeats, f.Summary.Pilots
	return row
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

func writeTable(w io.Writer, rows []listed) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "JOB\tNAME\tSTATE\tCLUSTER\tNODES\tPODS\tAGE\tLEFT")
	for _, row := range rows {
		nodes, pods := fmt.Sprint(row.Nodes), "-"
		if row.Head != "" {
			nodes = fmt.Sprintf("%d/%d", len(row.Ready), len(row.Ready)+len(row.Unready)+len(row.Lost))
			pods = fmt.Sprintf("%d/%d", row.Pods["Running"], login.LivingPods(row.Pods))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.Job, row.Name, strings.ToLower(row.State), row.Cluster, nodes, pods, slurm.FormatSpan(time.Duration(row.Seconds)*time.Second), left(row.Left))
	}
	return table.Flush()
}

func writeStatus(w io.Writer, row listed) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	timeLeft := "no time limit"
	if row.Left >= 0 {
		timeLeft = left(row.Left) + " left"
	}
	fmt.Fprintf(table, "job\t%s (%s), %s for %s, %s\n", row.Job, row.Name, strings.ToLower(row.State), slurm.FormatSpan(time.Duration(row.Seconds)*time.Second), timeLeft)
	fmt.Fprintf(table, "cluster\t%s; API server on %s, berth %s\n", row.Cluster, row.Head, row.Version)
	nodes := strings.Join(row.Ready, ", ")
	if len(row.Unready) > 0 {
		nodes += "; not ready: " + strings.Join(row.Unready, ", ")
	}
	if len(row.Lost) > 0 {
		nodes += "; lost: " + strings.Join(row.Lost, ", ")
	}
	fmt.Fprintf(table, "nodes\t%s\n", nodes)
	fmt.Fprintf(table, "pods\t%s\n", counts(row.Pods, "none"))
	if len(row.Waiting) > 0 {
		fmt.Fprintf(table, "waiting\t%s\n", counts(row.Waiting, ""))
	}
	if row.Seats > 0 {
		fmt.Fprintf(table, "seats\t%d of %d are free\n", row.FreeSeats, row.Seats)
	}
	for _, pilot := range row.Pilots {
		fmt.Fprintf(table, "job %s\t%s\n", pilot.Job, describePilot(pilot))
	}
	if row.Snapshotters != nil {
		fmt.Fprintf(table, "images\t%s\n", counts(row.Snapshotters, ""))
	}
	if row.FastPath != nil {
		fmt.Fprintf(table, "fast path\t%s\n", describeFastPath(row.FastPath))
	}
	return table.Flush()
}

// describePilot describes a job that pods have brought.
func describePilot(p login.Pilot) string {
	text := cmp.Or(strings.ToLower(p.State), "submitted")
	if p.Nodes > 1 {
		text += fmt.Sprintf(", %d nodes", p.Nodes)
	}
	if p.Hosts != "" {
		text += " on " + p.Hosts
	}
	if p.Reason != "" {
		text += " (" + p.Reason + ")"
	}
	if p.Start != "" {
		text += ", expected to start at " + p.Start
	}
	if p.Leaving {
		text += ", leaving"
	}
	return text
}

// counts lists the numbers with their names, the largest first. Without any it returns
// none.
func counts(of map[string]int, none string) string {
	var names []string
	for name := range of {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%d %s", of[name], name)
	}
	return cmp.Or(strings.Join(names, ", "), none)
}

func left(seconds int64) string {
	if seconds < 0 {
		return "no limit"
	}
	return slurm.FormatSpan(time.Duration(seconds) * time.Second)
}
