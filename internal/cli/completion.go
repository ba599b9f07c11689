package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/base/programs"
	"berth.dev/berth/internal/job/slurm"
)

// completionLimit bounds the request to Slurm: a user waits at a shell.
const completionLimit = 2 * time.Second

// completeJobs completes jobs for commands that take one, names in their clusters,
// and the values of options that take few.
func completeJobs(root *cobra.Command) {
	for _, command := range slices.Concat(root.Commands(), imageCommands(root)) {
		if strings.Contains(command.Use, "[JOB]") {
			command.ValidArgsFunction = jobCompletion
		}
		switch command.Name() {
		case "kubectl":
			command.ValidArgsFunction = namesCompletion()
		case "logs":
			command.ValidArgsFunction = namesCompletion("logs")
		case "port-forward", "open":
			command.ValidArgsFunction = namesCompletion("port-forward")
		}
		offer(command, "output", "text", "json")
		offer(command, "ip-family", "auto", "ipv4", "dual")
		offer(command, "carrier", "udp", "tcp")
		offer(command, "fast-path", "auto", "off")
		offer(command, "snapshotter", "auto", "overlayfs", "erofs")
		offer(command, "state-secrets", "encrypt", "omit")
		offer(command, "to", imageForms...)
		offer(command, "sort", "cpu", "memory", "name")
		for _, folder := range []string{"state-dir", "state", "image-cache", "rendezvous-dir", "shared-volumes", "debug-dir"} {
			if command.Flags().Lookup(folder) != nil {
				_ = command.MarkFlagDirname(folder)
			}
		}
	}
}

// bashWords replaces the function of cobra's script that needs the package
// bash-completion. Without the package it joins what readline splits at "=" and ":".
const bashWords = `
__berth_init_completion()
{
    COMPREPLY=()
    if declare -F _get_comp_words_by_ref >/dev/null; then
        _get_comp_words_by_ref "$@" cur prev words cword
        return
    fi
    local i word last
    words=() cword=0
    for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
        word=${COMP_WORDS[i]} last=$((${#words[@]} - 1))
        if ((last > 0)) && [[ $word == [=:]* || ${words[last]} == *[=:] ]]; then
            words[last]+=$word
        else
            words+=("$word")
        fi
        ((i != COMP_CWORD)) || cword=$((${#words[@]} - 1))
    done
    cur=${words[cword]} prev=${words[cword - 1]}
}
`

// describeCompletion writes the help of the completion command for the shells in
// which berth is used.
func describeCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, err := root.Find([]string{"completion"})
	if err != nil || completion == root {
		return // there is none
	}
	completion.Short = "Print a completion script for your shell"
	completion.Long = `Prints a script that makes a shell complete commands, options, running jobs, and
names in their clusters with the Tab key. The packages of berth install it.`
	completion.Example = `  source <(berth completion bash)
  source <(berth completion zsh)
  berth completion fish | source`
	completion.Use = "completion SHELL"
	completion.Args = noArguments // shells are commands
	completion.RunE = func(*cobra.Command, []string) error {
		return &usageError{errors.New("name a shell: bash, zsh or fish")}
	}
	for _, shell := range completion.Commands() {
		if shell.Name() == "powershell" {
			completion.RemoveCommand(shell)
			continue
		}
		shell.Short, shell.Long = "Print the script for "+shell.Name(), ""
		if shell.Name() == "bash" {
			shell.RunE = func(command *cobra.Command, _ []string) error {
				plain, err := command.Flags().GetBool("no-descriptions")
				if err != nil {
					return err
				}
				err = root.GenBashCompletionV2(command.OutOrStdout(), !plain)
				fmt.Fprint(command.OutOrStdout(), bashWords)
				return err
			}
		}
	}
}

// imageCommands returns the subcommands of berth image.
func imageCommands(root *cobra.Command) []*cobra.Command {
	image, _, err := root.Find([]string{"image"})
	if err != nil {
		return nil
	}
	return image.Commands()
}

func offer(command *cobra.Command, flag string, words ...string) {
	if command.Flags().Lookup(flag) != nil {
		_ = command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
}

// jobCompletion offers the running jobs of the user for the first argument.
func jobCompletion(command *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx, cancel := context.WithTimeout(command.Context(), completionLimit)
	defer cancel()
	place, err := newPlace()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	jobs, without, err := place.Jobs(ctx, false, nil)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var words []string
	for _, job := range jobs {
		if job.State == slurm.Running && !slices.Contains(without, job.ID) {
			words = append(words, cobra.CompletionWithDesc(job.Name, job.JobName))
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// namesCompletion completes jobs for the first argument, and after it what kubectl
// completes behind the given words: kubectl asks the cluster for names. Without a
// cluster, or with several clusters and no job, there are no names and no error.
func namesCompletion(words ...string) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		var offered []string
		if len(args) == 0 && (begun == "" || login.IsJobName(begun)) {
			offered, _ = jobCompletion(command, nil, begun)
		}
		job, args := takeJob(args)
		if flag := command.Flags().Lookup("namespace"); flag != nil && flag.Changed {
			args = append(args, "--namespace="+flag.Value.String())
		}
		ctx, cancel := context.WithTimeout(command.Context(), completionLimit)
		defer cancel()
		names, directive := askKubectl(ctx, job, slices.Concat(words, args, []string{begun}))
		return append(offered, names...), directive
	}
}

// askKubectl returns kubectl's completions of the last argument.
func askKubectl(ctx context.Context, job string, args []string) ([]string, cobra.ShellCompDirective) {
	const nothing = cobra.ShellCompDirectiveNoFileComp
	directory, err := programs.Dir()
	if err != nil {
		return nil, nothing
	}
	kubectl := exec.CommandContext(ctx, filepath.Join(directory, "kubectl"), append([]string{cobra.ShellCompRequestCmd}, args...)...)
	if len(args) > 1 { // else it is one of kubectl's own words
		session, err := reach(ctx, job)
		if err != nil {
			return nil, nothing
		}
		defer session.Close()
		kubectl.Env = clusterEnv(session)
	}
	answer, err := kubectl.Output()
	if err != nil {
		return nil, nothing
	}
	lines := strings.Split(strings.TrimSpace(string(answer)), "\n")
	number, isNumber := strings.CutPrefix(lines[len(lines)-1], ":")
	directive, err := strconv.Atoi(number)
	if !isNumber || err != nil {
		return nil, nothing
	}
	return lines[:len(lines)-1], cobra.ShellCompDirective(directive)
}
