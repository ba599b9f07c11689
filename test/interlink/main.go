// Command interlink acts as interLink's virtual node for the templates of interLink's
// test set. It sends their pods to a plugin, polls their statuses, and checks the
// conditions in the validation section of each template.
//
//	interlink -socket PATH [-without NAME,...] [-except REGEX] [-end] DIRECTORY
//	interlink -socket PATH -cost PODS -process PID
//
// It prints a line for each template, and deletes the pods of templates that succeed. It
// repeats requests until there is a reply. With -end, it then runs two more pods, prints
// "waiting for the end", and succeeds when the pods have failed because their cluster
// ended.
//
// With -cost, it measures the plugin, which is the process PID, with so many pods.
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

// limit bounds the time of all templates. It replaces the timeouts in the templates, which are
// too short for a busy machine.
const limit = 4 * time.Minute

// parallel is the number of templates to run at the same time.
const parallel = 5

// poll is the interval of status requests.
const poll = 500 * time.Millisecond

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "interlink:", err)
		os.Exit(1)
	}
}

func run() error {
	socket := flag.String("socket", "", "the unix `socket` of the plugin")
	without := flag.String("without", "", "`names` of templates to omit, separated by commas")
	except := flag.String("except", "", "omit checks of logs with this `regex`")
	end := flag.Bool("end", false, "also check pods that fail with their cluster")
	cost := flag.Int("cost", 0, "measure requests for this number of `pods`")
	pid := flag.Int("process", 0, "the process `ID` of the plugin")
	flag.Parse()
	if *cost > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*limit)
		defer cancel()
		return newPlugin(*socket).measure(ctx, *cost, *pid)
	}
	paths, err := filepath.Glob(filepath.Join(flag.Arg(0), "*.yaml"))
	if err != nil {
		return fmt.Errorf("list templates: %w", err)
	}
	if len(paths) == 0 {
		return fmt.Errorf("no template in %q", flag.Arg(0))
	}
	plugin := newPlugin(*socket)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	omitted := strings.Split(*without, ",")
	problems := make([]error, len(paths))
	var running sync.WaitGroup
	free := make(chan struct{}, parallel)
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

// plugin is an HTTP client of an interLink plugin.
type plugin struct{ client *http.Client }

func newPlugin(socket string) *plugin {
	return &plugin{&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

// call sends a request, and repeats it until there is a reply or ctx ends. It returns an
// error for a reply with another status than 200. It decodes the reply as JSON, or stores
// its text if reply is a *string.
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
		case <-time.After(poll): // the plugin may have been killed, and a new one starts
		}
	}
}

// send sends a request once, and returns the status and text of the reply.
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

// awaitEnd runs two pods, one with an HTTP server, and waits until they fail because their
// cluster ends.
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
