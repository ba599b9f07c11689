package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/netrole"
)

// ksiAccount is the service account whose token KSI scripts receive.
const ksiAccount = "admin-user"

// ksiApp is the folder of the nodes that the pods of KSI scripts mount.
const ksiApp = "/app"

// ksiFolder returns the host's folder for ksiApp: app in the shared folder, which
// it creates, or the working directory.
func ksiFolder(ksi cluster.KSI) (string, error) {
	if ksi.Shared == "" {
		return os.Getwd()
	}
	shared, err := filepath.Abs(ksi.Shared)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(shared); err != nil {
		return "", exitcode.Wrap(exitcode.NoInput, fmt.Errorf("use the shared folder: %w", err))
	} else if !info.IsDir() {
		return "", exitcode.Wrap(exitcode.NoInput, fmt.Errorf("use the shared folder: %s is not a folder", shared))
	}
	app := filepath.Join(shared, "app")
	if err := os.MkdirAll(app, 0o755); err != nil {
		return "", exitcode.Wrap(exitcode.NoInput, fmt.Errorf("use the shared folder: %w", err))
	}
	return app, nil
}

// contextName returns the name of the context in the user's kubeconfig. KSI
// scripts may name files after it, so it differs between their runs.
func contextName(spec cluster.Spec, plan cluster.Plan) string {
	if spec.KSI != nil {
		return plan.RunID
	}
	return "berth"
}

// The range of ports for Services of type NodePort.
const firstNodePort, lastNodePort = 30000, 32767

// ksiPortVariable contains the port for a KSI script. The user may set it to
// choose the port.
const ksiPortVariable = "K8S_PORT"

// checkKSI checks the options and the environment of a KSI script before anything
// starts.
func checkKSI(options Options) error {
	if options.Spec.KSI == nil {
		return nil
	}
	_, portErr := ksiPort(options.Getenv)
	_, folderErr := ksiFolder(*options.Spec.KSI)
	return errors.Join(portErr, folderErr)
}

// ksiPort returns the port that the user chose, or 0.
func ksiPort(getenv func(string) string) (uint16, error) {
	value := getenv(ksiPortVariable)
	if value == "" {
		return 0, nil
	}
	port, err := strconv.ParseUint(value, 10, 16)
	if err != nil || port < firstNodePort || port > lastNodePort {
		return 0, exitcode.Wrap(exitcode.Usage, fmt.Errorf("%s=%s: a port for a Service is between %d and %d", ksiPortVariable, value, firstNodePort, lastNodePort))
	}
	return uint16(port), nil
}

// publishForKSI opens the port of a KSI script on the head, where the script
// runs: the chosen port, or else the first free one. The search begins at a port
// that depends on the process, so that runs on one host seldom collide.
func publishForKSI(ctx context.Context, getenv func(string) string) (opened netrole.Published, err error) {
	port, err := ksiPort(getenv)
	if err != nil {
		return opened, err
	}
	const count = lastNodePort - firstNodePort + 1
	for i := range count {
		try := port
		if port == 0 {
			try = firstNodePort + uint16((os.Getpid()+i)%count)
		}
		opened, err = netrole.Publish(ctx, cluster.Publish{Host: try, Node: try})
		if err == nil || port != 0 || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		err = exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("open %s: %w", ksiPortVariable, err))
	}
	return opened, err
}

// ksiEnv returns the environment variables that a KSI script expects. port is the
// one of publishForKSI.
func ksiEnv(ctx context.Context, spec cluster.Spec, plan cluster.Plan, client *workload.Client, port uint16) (map[string]string, error) {
	if spec.KSI == nil {
		return nil, nil
	}
	token, err := client.AdminToken(ctx, ksiAccount)
	if err != nil {
		return nil, exitcode.Wrap(exitcode.Internal, err)
	}
	return map[string]string{
		"K8S_CLUSTER_NAME":      contextName(spec, plan),
		"K8S_CLUSTER_API":       plan.Addresses.HostAPIServerURL(),
		"K8S_CLUSTER_API_TOKEN": token,
		ksiPortVariable:         strconv.Itoa(int(port)),
	}, nil
}

// CheckScript checks early that the script exists and a shell can read it.
func CheckScript(path string) error {
	file, err := os.Open(path)
	if err == nil {
		defer file.Close()
		var info os.FileInfo
		if info, err = file.Stat(); err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a file", path)
		}
	}
	if err != nil {
		return exitcode.Wrap(exitcode.NoInput, fmt.Errorf("read the script: %w", err))
	}
	return nil
}
