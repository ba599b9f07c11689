package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/base/programs"
)

func newForwardCommand() *cobra.Command {
	var namespace string
	command := &cobra.Command{
		Use:   "port-forward [JOB] TYPE/NAME [[LOCAL:]PORT...]",
		Short: "Forward ports of this host to a Service or pod in the cluster of a job",
		Long: `Forwards ports of this host's loopback to a pod, or to one behind a Service.
Without a port, it forwards all ports of the Service or pod. Connections of
other users on this host are refused.`,
		Example: `  berth port-forward svc/web
  berth port-forward 4711 pod/db 15432:5432`,
		RunE: func(command *cobra.Command, args []string) error {
			job, args := takeJob(args)
			if len(args) == 0 {
				return &usageError{fmt.Errorf("no TYPE/NAME to forward to, such as svc/web")}
			}
			session, err := reach(command.Context(), job)
			if err != nil {
				return err
			}
			defer session.Close()
			target, ports := args[0], args[1:]
			if len(ports) == 0 {
				if ports, err = portsOf(command.Context(), session, namespace, target); err != nil {
					return err
				}
				for i, port := range ports {
					if number, err := strconv.Atoi(port); err == nil && number < 1024 {
						ports[i] = ":" + port // such ports are root's
					}
				}
			}
			arguments := append(namespaced(namespace, "port-forward", target), ports...)
			return runProgram(command.Context(), session, "kubectl", arguments...)
		},
	}
	command.Flags().StringVarP(&namespace, "namespace", "n", "", "`namespace` of the Service or pod")
	return command
}

func newOpenCommand() *cobra.Command {
	var namespace string
	command := &cobra.Command{
		Use:   "open [JOB] TYPE/NAME [PORT]",
		Short: "Open a notebook or dashboard of a cluster in your browser",
		Long: `Forwards a free port of this host's loopback to the Service or pod, and prints
the address for a browser on this host and the ssh command for one elsewhere.
Connections of other users on this host are refused, so that only you reach a
notebook without a password.`,
		Example: `  berth open 4711 svc/notebook`,
		RunE: func(command *cobra.Command, args []string) error {
			job, args := takeJob(args)
			if len(args) == 0 || len(args) > 2 {
				return &usageError{fmt.Errorf("one TYPE/NAME to open is needed, such as svc/notebook, and perhaps a port")}
			}
			session, err := reach(command.Context(), job)
			if err != nil {
				return err
			}
			defer session.Close()
			port := ""
			if len(args) == 2 {
				port = args[1]
			} else {
				ports, err := portsOf(command.Context(), session, namespace, args[0])
				if err != nil {
					return err
				}
				port = ports[0]
			}
			return open(command.Context(), session, command.OutOrStdout(), namespaced(namespace, "port-forward", args[0], ":"+port), port)
		},
	}
	command.Flags().StringVarP(&namespace, "namespace", "n", "", "`namespace` of the Service or pod")
	return command
}

func namespaced(namespace string, arguments ...string) []string {
	if namespace == "" {
		return arguments
	}
	return append([]string{"--namespace", namespace}, arguments...)
}

// portsOf asks the cluster which TCP ports a Service or pod has.
func portsOf(ctx context.Context, session *login.Session, namespace, target string) ([]string, error) {
	directory, err := programs.Dir()
	if err != nil {
		return nil, err
	}
	const template = `{.spec.ports[?(@.protocol=="TCP")].port} {.spec.containers[*].ports[?(@.protocol=="TCP")].containerPort} {.spec.template.spec.containers[*].ports[?(@.protocol=="TCP")].containerPort}`
	if !strings.Contains(target, "/") {
		target = "pod/" + target
	}
	kubectl := exec.CommandContext(ctx, filepath.Join(directory, "kubectl"), namespaced(namespace, "get", target, "--output=jsonpath="+template)...)
	kubectl.Env = clusterEnv(session)
	kubectl.Stderr = os.Stderr
	answer, err := kubectl.Output()
	if err != nil {
		return nil, &result{1} // kubectl has said why
	}
	var ports []string
	for port := range strings.FieldsSeq(string(answer)) {
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	if len(ports) == 0 {
		return nil, &usageError{fmt.Errorf("%s names no port: add one", target)}
	}
	return ports, nil
}

// open runs kubectl's port-forward and prints the URL once it listens.
func open(ctx context.Context, session *login.Session, out io.Writer, arguments []string, port string) error {
	directory, err := programs.Dir()
	if err != nil {
		return err
	}
	kubectl := exec.Command(filepath.Join(directory, "kubectl"), arguments...)
	kubectl.Env = clusterEnv(session)
	reader, writer := io.Pipe()
	defer writer.Close()
	kubectl.Stdout = writer
	go func() {
		shown := false
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			local, isOne := strings.CutPrefix(lines.Text(), "Forwarding from 127.0.0.1:")
			if local, _, _ = strings.Cut(local, " "); isOne && !shown {
				shown = true
				showAddress(out, local, port)
			}
		}
	}()
	return runThroughTunnel(ctx, session, kubectl)
}

func showAddress(out io.Writer, local, remote string) {
	scheme := "http"
	if strings.HasSuffix(remote, "443") {
		scheme = "https"
	}
	host, err := os.Hostname()
	if err != nil {
		host = "HOST"
	}
	fmt.Fprintf(out, `%[1]s://localhost:%[2]s/

A browser elsewhere gets there by this command on its machine:
    ssh -N -L %[2]s:localhost:%[2]s %[3]s@%[4]s
Ctrl-C ends it.
`, scheme, local, os.Getenv("USER"), host)
}
