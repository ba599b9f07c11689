package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/launch"
)

const (
	clusterArg   = "test-cluster" // starts the test program as the cluster of a persistent parent
	clusterLines = 2000
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case launch.PersistentParentArg:
			os.Exit(PersistentParent())
		case clusterArg:
			fmt.Println(`berth-up: {}`)
			os.Stdout.Write(bytes.Repeat([]byte("berth: a line of 100 bytes"+string(bytes.Repeat([]byte("."), 73))+"\n"), clusterLines))
			os.Exit(7)
		}
	}
	os.Exit(m.Run())
}

// Nobody reads standard error, as at a terminal after Ctrl-S. The parent ends with the
// cluster, because 'berth down' waits for its end.
func TestPersistentParentDoesNotWaitForReaderOfMessages(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	messages, toCommand, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Close()
	reader, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if _, err := unix.FcntlInt(stderr.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	parent := exec.CommandContext(ctx, "/proc/self/exe", launch.PersistentParentArg)
	parent.Stderr = stderr
	var fds linux.FDTable
	fds.Add("messages", toCommand)
	order := map[string]any{"Args": []string{clusterArg}, "Job": "local", "Inside": true, "Words": true}
	if err := fds.Start(parent, order); err != nil {
		t.Fatal(err)
	}
	toCommand.Close()
	stderr.Close()
	if text, err := io.ReadAll(messages); err != nil || !bytes.Contains(text, []byte(`{"Facts":{`)) {
		t.Errorf("the command that waits got %q, %v", text, err)
	}
	err = parent.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("the parent ended with %v", err)
	}
}
