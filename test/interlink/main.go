// Command interlink plays interLink's virtual node for the templates of its test set:
// it sends their pods to a plugin, follows their statuses, and checks what the last
// part of each template asks for.
//
//	interlink -socket PATH [-without NAME,...] [-except TEXT] [-end] DIRECTORY
//
// It prints a line for each template that succeeds, and deletes its pods. It
// repeats requests until there is a reply. With -end, it then runs two
// more pods, prints "waiting for the end", and succeeds when they have failed because
// their cluster ended.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// limit bounds the time for all templates. The times in them are for a warm machine.
const limit = 4 * time.Minute

// abreast is the number of templates that run at once.
const abreast = 5

// poll is the interval of the queries for statuses.
const poll = 500 * time.Millisecond

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "interlink:", err)
		os.Exit(1)
	}
}

func run() error {
	socket := flag.String("socket", "", "the plugin's socket")
	without := flag.String("without", "", "templates to omit, by comma")
	except := flag.String("except", "", "the pattern of a check of logs to omit")
	end := flag.Bool("end", false, "wait for the end of the cluster")
	flag.Parse()
	paths, err := filepath.Glob(filepath.Join(flag.Arg(0), "*.yaml"))
	if err != nil || len(paths) == 0 {
		return fmt.Errorf("no template in %q: %v", flag.Arg(0), err)
	}
	plugin := newPlugin(*socket)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	omitted := strings.Split(*without, ",")
	problems := make([]error, len(paths))
	var running sync.WaitGroup
	free := make(chan struct{}, abreast)
	for i, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		if slices.Contains(omitted, name) {
			continue
		}
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			began := time.Now()
			if err := plugin.try(ctx, path, *except); err != nil {
				problems[i] = fmt.Errorf("%s: %w", name, err)
				fmt.Println("FAILED", problems[i])
				return
			}
			fmt.Printf("ok %s (%.1f s)\n", name, time.Since(began).Seconds())
		})
	}
	running.Wait()
	if err := errors.Join(problems...); err != nil || !*end {
		return err
	}
	return plugin.awaitEnd(ctx)
}

// plugin is a client of a plugin.
type plugin struct{ client *http.Client }

func newPlugin(socket string) *plugin {
	return &plugin{&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

// call sends a request, again and again while there is no reply. It decodes the reply,
// unless reply is a *string, which gets the text.
func (p *plugin) call(ctx context.Context, method, path string, body, reply any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	for {
		status, text, err := p.send(ctx, method, path, content)
		switch {
		case err == nil && status != http.StatusOK:
			return fmt.Errorf("%s: %d %s", path, status, text)
		case err == nil:
			if into, ok := reply.(*string); ok {
				*into = string(text)
				return nil
			}
			return json.Unmarshal(text, reply)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(poll): // the plugin was killed, and another one is about to start
		}
	}
}

func (p *plugin) send(ctx context.Context, method, path string, content []byte) (int, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://plugin"+path, bytes.NewReader(content))
	if err != nil {
		return 0, nil, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, text, err
}

// awaitEnd runs two pods until their cluster ends. One of them serves HTTP.
func (p *plugin) awaitEnd(ctx context.Context) error {
	t := &trial{plugin: p}
	for name, command := range map[string][]string{"web": {"python", "-m", "http.server", "8080"}, "client": {"sleep", "1000"}} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "main", Image: "python:alpine", Command: command}},
		}}
		pod.Namespace, pod.Name = "interlink", name
		if err := t.create(ctx, pod); err != nil {
			return err
		}
	}
	all := func(phase corev1.PodPhase) func() error {
		return func() error {
			for _, pod := range t.pods {
				if pod.Status.Phase != phase {
					return fmt.Errorf("the phase of %s is %s", pod.Name, pod.Status.Phase)
				}
			}
			return nil
		}
	}
	if err := t.await(ctx, all(corev1.PodRunning)); err != nil {
		return err
	}
	fmt.Println("waiting for the end")
	if err := t.await(ctx, all(corev1.PodFailed)); err != nil {
		return err
	}
	for _, pod := range t.pods {
		fmt.Printf("%s failed: %s\n", pod.Name, pod.Status.ContainerStatuses[0].State.Terminated.Message)
	}
	return nil
}
