package berthd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/siteconf"
)

// asker asks berthd as the plugin does: SOCKET, LIMIT in seconds, and the NUMBER of fields. It
// prints whether a job without an answer is held, and the reason.
const asker = `
#include "client.c"
#include <stdlib.h>

int main(int count, char **arguments)
{
	static struct question q;
	struct settings s = { 0 };
	struct pod pod;
	char reason[REASON_SIZE];
	if (count != 4)
		return 2;
	strncpy(s.socket, arguments[1], sizeof s.socket - 1);
	question_begin(&q, "attach");
	q.restart_limit = 0;
	q.answer_limit = atoi(arguments[2]);
	for (int i = 0; i < atoi(arguments[3]); i++)
		question_text(&q, "nodes", "n[0-4000:2]");
	if (!ask_berthd(&s, &q, &pod, reason))
		return 1;
	printf("%d: %s", pod.later, reason);
	return 0;
}
`

// The plugin holds a job in the queue only if berthd says that it may get a network later, or does
// not answer.
func TestPluginHoldsJobsThatMayGetNetworkLater(t *testing.T) {
	dir := t.TempDir()
	source, program := filepath.Join(dir, "asker.c"), filepath.Join(dir, "asker")
	if err := os.WriteFile(source, []byte(asker), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-std=gnu11", "-I../../../spank", "-o", program, source}
	if prefix := os.Getenv("SLURM_PREFIX"); prefix != "" {
		args = append(args, "-I"+prefix+"/include")
	}
	if out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("compile with Slurm's headers (libslurm-dev): %v: %s", err, out)
	}
	refusing := func(why error) func(context.Context, *net.UnixListener) {
		d := newDaemon(siteconf.Config{}, "n0", netip.Addr{}, nil, nil, slog.New(slog.DiscardHandler))
		d.server.do = func(context.Context, *unix.Ucred, siteconf.Message, map[string]string) ([]*os.File, error) {
			return nil, why
		}
		return func(ctx context.Context, listener *net.UnixListener) { _ = d.server.serve(ctx, listener) }
	}
	// accepting keeps connections without an answer, or closes them.
	accepting := func(keep bool) func(context.Context, *net.UnixListener) {
		return func(ctx context.Context, listener *net.UnixListener) {
			defer context.AfterFunc(ctx, func() { listener.Close() })()
			for {
				conn, err := listener.AcceptUnix()
				if err != nil {
					return
				}
				if !keep {
					conn.Close()
				} else {
					defer conn.Close()
				}
			}
		}
	}
	never := errors.New("this job is too large")
	for i, test := range []struct {
		name          string
		serve         func(context.Context, *net.UnixListener)
		limit, fields int
		want          string
	}{
		{"berthd is away", nil, 60, 1, "1: berthd does not answer"},
		{"berthd ends", accepting(false), 60, 1, "1: "},
		{"berthd hangs", accepting(true), 1, 1, "1: berthd has not answered"},
		{"for now", refusing(&noNetwork{error: errors.New("etcd is away")}), 60, 1, "1: etcd is away"},
		{"for good", refusing(never), 60, 1, "0: this job is too large"},
		{"too many nodes", refusing(never), 60, 5000, "0: the list of the job's nodes is too long"},
	} {
		run := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(run, 0o700); err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		served := make(chan struct{})
		if test.serve == nil {
			close(served)
		} else {
			listener, err := listen(run)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				defer close(served)
				test.serve(ctx, listener)
			}()
		}
		out, err := exec.CommandContext(t.Context(), program, filepath.Join(run, siteconf.Socket), fmt.Sprint(test.limit), fmt.Sprint(test.fields)).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), test.want) {
			t.Errorf("%s: %s, %v; want %s", test.name, out, err, test.want)
		}
		end()
		<-served
	}
}
