package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/site/siteconf"
)

// nameLimit bounds the time for berthd to assign names. berthd gives etcd five
// seconds, and may be busy with requests of other runs or with too many
// connections.
const nameLimit = 15 * time.Second

// berthdAway bounds the absence of berthd, which can be replaced while jobs run.
const berthdAway = 3 * time.Second

// namePublished registers names in the user's domain for the published ports of
// this host, and returns lines about them. The names exist as long as this process
// holds the returned file from berthd. Each host of a run does so, and a name
// resolves to all of them.
func namePublished(ctx context.Context, spec cluster.Spec, job *allocation.Allocation, getenv func(string) string) (held *os.File, lines []string, err error) {
	ports, err := namedPorts(spec)
	if err != nil || len(ports) == 0 {
		return nil, nil, err
	}
	names := namesOf(ports)
	defer func() {
		if err != nil {
			err = fmt.Errorf("name %s: %w", names, err)
		}
	}()
	id, err := ownJob(job, getenv)
	if err != nil {
		return nil, nil, err
	}
	config, err := siteconf.Load(siteconf.ConfigPath)
	if err != nil {
		return nil, nil, err
	}
	var answer siteconf.Message
	err = untilBerthdServes(ctx, func() error {
		answer, held, err = askForNames(ctx, config.Run, id, names)
		return err
	})
	return held, describeNames(ports, answer), err
}

// namedPorts returns the published ports that have a name.
func namedPorts(spec cluster.Spec) ([]cluster.Publish, error) {
	var named []cluster.Publish
	for _, value := range spec.Publish {
		port, err := cluster.ParsePublish(value)
		if err != nil {
			return nil, err
		}
		if port.Name != "" {
			named = append(named, port)
		}
	}
	return named, nil
}

// namesOf returns the names of the ports, in a form for berthd and for people.
func namesOf(ports []cluster.Publish) string {
	var names []string
	for _, port := range ports {
		names = append(names, port.Name)
	}
	return strings.Join(names, ",")
}

// ownJob returns the number of the job whose network this is.
func ownJob(job *allocation.Allocation, getenv func(string) string) (string, error) {
	id := ""
	if job != nil {
		local, err := hostnet.LocalAddresses()
		if err != nil {
			return "", err
		}
		id = hostnet.NetworkOf(job.Job, getenv, local)
	}
	if id == "" {
		return "", errors.New("names are only for jobs with their own network (docs/site-network.md), and this job uses the hosts' network: publish the port without a name, as in --publish 8080:80")
	}
	return id, nil
}

// untilBerthdServes repeats ask until berthd listens and does not close the
// connection immediately. berthd serves a limited number of connections of each
// user and closes any others.
func untilBerthdServes(ctx context.Context, ask func() error) error {
	for begin := time.Now(); ; {
		err := ask()
		var limit time.Duration
		switch {
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
			limit = berthdAway
		case errors.Is(err, siteconf.ErrClosed), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
			limit = nameLimit
		}
		if time.Since(begin) >= limit {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// askForNames asks the berthd with the directory run for the names of a job. The
// names exist as long as the returned file is open, however its process ends.
func askForNames(ctx context.Context, run, job, names string) (siteconf.Message, *os.File, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, nameLimit, fmt.Errorf("berthd has not answered within %s", nameLimit))
	defer cancel()
	question := siteconf.Message{Verb: siteconf.VerbServe, Fields: map[string]string{"job": job, "names": names}}
	answer, files, err := siteconf.Ask(ctx, run, question)
	if err != nil {
		return answer, nil, err
	}
	if len(files) != 1 {
		linux.CloseAll(files)
		return answer, nil, errors.New("berthd did not report how long the name lasts: install the same version of berthd and berth")
	}
	return answer, files[0], nil
}

// describeNames returns a line about each published port and its name.
func describeNames(ports []cluster.Publish, answer siteconf.Message) []string {
	var lines []string
	for _, port := range ports {
		line := fmt.Sprintf("your jobs and sessions reach port %d of the nodes at %s.%s:%d", port.Node, port.Name, answer.Fields["domain"], port.Host)
		if wait := answer.Fields["wait"]; wait != "" {
			line += fmt.Sprintf(", in about %s s, as names have just changed", wait)
		}
		lines = append(lines, line)
	}
	return lines
}
