package cli

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/access/top"
)

// fastest is the shortest interval between updates: the metrics do not change more
// often.
const fastest = time.Second

func newTopCommand() *cobra.Command {
	view := top.View{Order: top.ByCPU}
	every := 2 * time.Second
	once := false
	command := &cobra.Command{
		Use:   "top [flags] [JOB]",
		Short: "Show the nodes and pods of a cluster on one screen",
		Long: `Shows the nodes, pods, network and warnings of a cluster, and the time that its
job has left, until q is pressed. If standard output is not a terminal, it
prints them once, as text.

Keys: c, m and n sort the pods by CPU, memory and name; the arrows, Page Up,
Page Down and Home scroll them.

Without JOB, inside 'berth run' it shows that run's cluster. Outside Slurm it
shows the cluster of this machine, if there is only one.`,
		Example: `  berth top
  berth top 4711 --sort memory
  berth top 4711 --once > state.txt`,
		Args: atMostAJob,
		RunE: func(command *cobra.Command, args []string) error {
			var problems []error
			if every < fastest {
				problems = append(problems, fmt.Errorf("--interval %s: give %s or more", every, fastest))
			}
			if o := view.Order; o != top.ByCPU && o != top.ByMemory && o != top.ByName {
				problems = append(problems, fmt.Errorf("--sort %s: give cpu, memory or name", o))
			}
			if len(problems) > 0 {
				return &usageError{errors.Join(problems...)}
			}
			job, _ := takeJob(args)
			return withCluster(command.Context(), job, func(api *login.API, session *login.Session) error {
				view.Title = "this cluster"
				terminal := top.Terminal{In: os.Stdin, Out: os.Stdout, Every: every}
				if session != nil {
					view.Title = "job " + session.Target.String()
					terminal.Lost = session.Lost()
				}
				smart := term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("TERM") != "dumb"
				if once || !smart || !term.IsTerminal(int(os.Stdin.Fd())) {
					return top.Once(command.Context(), api, view, os.Stdout)
				}
				view.Colour = os.Getenv("NO_COLOR") == ""
				return top.Run(command.Context(), api, view, terminal)
			})
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.DurationVarP(&every, "interval", "i", every, "refresh `interval`")
	flags.StringVarP(&view.Namespace, "namespace", "n", "", "show only pods of this `namespace` (default: all)")
	flags.StringVar((*string)(&view.Order), "sort", string(view.Order), "`order` of the pods: cpu, memory or name")
	flags.BoolVar(&once, "once", false, "print the state once, as text")
	return command
}
