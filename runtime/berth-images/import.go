package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/imagestore"
)

// errReported ends the program after errors that were already printed as lines.
var errReported = errors.New("some archives could not be imported")

// visibleWithin bounds the wait until CRI knows an image, which usually takes milliseconds.
const visibleWithin = 10 * time.Second

// maxAttempts bounds the attempts of a step of the import while containerd ends again and again.
// The supervisor starts it three times again.
const maxAttempts = 4

// servingWithin bounds the wait until containerd, which has ended, answers again.
const servingWithin = 30 * time.Second

// result is one line of output.
type result struct {
	Archive      string `json:"archive"`
	Name         string `json:"name,omitempty"`
	Digest       string `json:"digest,omitempty"`
	InPlace      bool   `json:"inPlace,omitempty"`
	Milliseconds int64  `json:"ms,omitempty"`
	Error        string `json:"error,omitempty"`
}

func importArchives(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("import", flag.ContinueOnError)
	socket := flags.String("socket", "", "`path` of containerd's socket")
	namespace := flags.String("namespace", "k8s.io", "containerd `namespace`")
	snapshotter := flags.String("snapshotter", "overlayfs", "`snapshotter` to unpack for")
	hosts := flags.String("hosts", "", "`directory` of containerd's hosts.toml files, to get the mirror")
	mirrorAddress := flags.String("mirror", "", "`address` of the mirror that serves archives' images")
	atOnce := flags.Int("parallel", 4, "`archives` at once")
	var most budget.Budget
	flags.Func("budget", "`number` that multiplies the limits on images", most.Set)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *socket == "" || flags.NArg() == 0 {
		return errors.New(usage)
	}
	var archives []imagestore.Archive
	for _, arg := range flags.Args() {
		a, err := imagestore.ParseArchive(arg)
		if err != nil {
			return err
		}
		a.Budget = most
		archives = append(archives, a)
	}
	client, err := containerd.New(*socket, containerd.WithDefaultNamespace(*namespace))
	if err != nil {
		return fmt.Errorf("connect to containerd (socket %s): %w", *socket, err)
	}
	defer client.Close()
	ctx = namespaces.WithNamespace(ctx, *namespace)
	var importer *imagestore.Importer
	if err := repeat(ctx, client.IsServing, func() (err error) {
		importer, err = imagestore.NewImporter(ctx, client, *snapshotter)
		return err
	}); err != nil {
		return err
	}

	mirrors := imagestore.Mirrors{Dir: *hosts, Address: *mirrorAddress}
	lines := &printer{out: json.NewEncoder(out)}
	var group errgroup.Group // without a context: one bad archive stops no other
	group.SetLimit(*atOnce)
	for _, a := range archives {
		group.Go(func() error {
			var imported []imagestore.Imported
			err := repeat(ctx, client.IsServing, func() (err error) {
				imported, err = importer.Import(ctx, a)
				return err
			})
			for _, img := range imported {
				if *hosts != "" {
					if added := mirrors.Add(img.Name); added != nil {
						err = errors.Join(err, added)
						continue
					}
				}
				if visible := awaitVisible(ctx, client, *namespace, img.Name); visible != nil {
					err = errors.Join(err, visible)
					continue
				}
				lines.print(result{Archive: a.Path, Name: img.Name, Digest: img.Digest, InPlace: img.InPlace, Milliseconds: img.Took.Milliseconds()})
			}
			if err != nil {
				lines.print(result{Archive: a.Path, Error: err.Error()})
				return errReported
			}
			return nil
		})
	}
	return group.Wait()
}

// repeat calls do again if containerd ended meanwhile, because the supervisor starts it
// again. serving waits until containerd answers.
func repeat(ctx context.Context, serving func(context.Context) (bool, error), do func() error) error {
	for attempt := 1; ; attempt++ {
		err := do()
		if !errdefs.IsUnavailable(err) || attempt == maxAttempts {
			return err
		}
		waiting, cancel := context.WithTimeout(ctx, servingWithin)
		_, lost := serving(waiting)
		cancel()
		if lost != nil {
			return err
		}
	}
}

// awaitVisible waits until the kubelet can see an image. The kubelet sees only the namespace
// k8s.io, so for others awaitVisible returns at once.
func awaitVisible(ctx context.Context, client *containerd.Client, namespace, name string) error {
	if namespace != "k8s.io" {
		return nil
	}
	conn, ok := client.Conn().(grpc.ClientConnInterface)
	if !ok {
		return fmt.Errorf("ask for image %s: connection of type %T", name, client.Conn())
	}
	ctx, cancel := context.WithTimeout(ctx, visibleWithin)
	defer cancel()
	return imagestore.AwaitVisible(ctx, conn, name)
}

type printer struct {
	mu  sync.Mutex
	out *json.Encoder
}

// print writes a line. It ignores errors: the import continues without a reader.
func (p *printer) print(r result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.out.Encode(r)
}
