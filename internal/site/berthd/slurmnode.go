package berthd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// drainReason begins the reason of each node that berth has drained. spank/drain.c has it too.
const drainReason = "berth: "

// maxReason bounds a reason, in bytes: sinfo -R shows the beginning.
const maxReason = 300

// errNoNode means that Slurm has no node of that name, such as a login host.
var errNoNode = errors.New("Slurm does not know this node")

// slurmNode is the state of a node as slurmctld has it.
type slurmNode struct {
	// drained reports whether it gets no new jobs, and ours whether because of berth.
	drained, ours bool
}

// lookUp asks slurmctld for the state of a node. It returns errNoNode for hosts that are no
// nodes of Slurm, or without Slurm's commands.
func lookUp(ctx context.Context, node string) (slurmNode, error) {
	out, err := scontrol(ctx, "show", "node", node)
	if err != nil {
		if errors.Is(err, exec.ErrNotFound) || strings.Contains(err.Error(), "not found") {
			return slurmNode{}, errNoNode
		}
		return slurmNode{}, err
	}
	return parseNode(out), nil
}

// parseNode reads what 'scontrol show node' prints.
func parseNode(text string) slurmNode {
	var n slurmNode
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if state, found := strings.CutPrefix(line, "State="); found {
			state, _, _ = strings.Cut(state, " ")
			n.drained = strings.Contains(state, "DRAIN")
		}
		if reason, found := strings.CutPrefix(line, "Reason="); found {
			n.ours = strings.HasPrefix(reason, drainReason)
		}
	}
	n.ours = n.ours && n.drained
	return n
}

// drain makes Slurm send no more jobs to a node. A node that is drained already keeps its reason, which
// may be an administrator's.
func drain(ctx context.Context, node string, why error) error {
	n, err := lookUp(ctx, node)
	if err != nil || n.drained {
		return err
	}
	reason := strings.Join(strings.Fields(drainReason+why.Error()), " ")
	_, err = scontrol(ctx, "update", "NodeName="+node, "State=DRAIN", "Reason="+reason[:min(len(reason), maxReason)])
	return err
}

// undrain puts a node back into service. Its other states, such as DOWN, stay.
func undrain(ctx context.Context, node string) error {
	_, err := scontrol(ctx, "update", "NodeName="+node, "State=UNDRAIN")
	return err
}

// pluginLoads checks that Slurm loads the plugin on this host. srun loads what plugstack.conf names,
// as slurmstepd does, and lists the plugin's options. That finds every cause, does not ask
// slurmctld, and takes 7 ms. An error names the cause.
func pluginLoads(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, scontrolLimit)
	defer cancel()
	srun := exec.CommandContext(ctx, "srun", "--help")
	srun.Env = []string{"PATH=" + os.Getenv("PATH")} // a prolog has variables of the job
	if conf := os.Getenv("SLURM_CONF"); conf != "" {
		srun.Env = append(srun.Env, "SLURM_CONF="+conf)
	}
	out, err := srun.CombinedOutput()
	if err != nil {
		return fmt.Errorf("look whether Slurm loads %s: srun --help: %w", pluginName, err)
	}
	if strings.Contains(string(out), "--network-pod") {
		return nil
	}
	if err := plugged(ctx); err != nil {
		return err
	}
	said, _, _ := strings.Cut(string(out), "\n")
	return fmt.Errorf("Slurm does not load %s, and jobs are in the network of the hosts: %s", pluginName, said)
}
