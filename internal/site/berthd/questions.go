package berthd

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/site/berthd/limits"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

// do executes a question, fills in the answer, and returns the files to send with it.
func (d *daemon) do(ctx context.Context, peer *unix.Ucred, question siteconf.Message, answer map[string]string) ([]*os.File, error) {
	if question.Verb == siteconf.VerbStatus {
		answer["node"] = d.node
		if peer.Uid == 0 {
			answer["pods"] = d.status()
			if problem := d.service.probe(); problem != nil {
				answer["ill"] = problem.Error()
			}
		}
		return nil, nil
	}
	if question.Verb == siteconf.VerbName {
		job, err := number(question, "job")
		if err != nil {
			return nil, err
		}
		return nil, d.name(ctx, peer.Uid, job, question.Fields["names"])
	}
	if question.Verb == siteconf.VerbServe {
		job, err := number(question, "job")
		if err != nil {
			return nil, err
		}
		return d.nameRun(ctx, peer.Uid, job, question.Fields["names"], answer)
	}
	if peer.Uid != 0 {
		return nil, fmt.Errorf("%s is for root", question.Verb)
	}
	switch question.Verb {
	case siteconf.VerbAttach:
		request, err := requestOf(question)
		if err != nil {
			return nil, err
		}
		switch declined, err := d.optOuts.covers(request.Job, request.UID); {
		case err != nil:
			return nil, err
		case declined:
			answer["declined"] = "yes"
			return nil, nil
		}
		pod, err := d.attach(ctx, request, limitOf(question))
		if err != nil {
			return nil, err
		}
		answer["address"] = pod.Address.String()
		return d.pods.enter(request.Allocation().ID(), answer)
	case siteconf.VerbLogin:
		uid, err := number(question, "uid")
		if err != nil {
			return nil, err
		}
		if !d.sessions.starting.Enter(uid) {
			return nil, fmt.Errorf("%d sessions of yours begin on %s at once: try again in some seconds", limits.MaxStarting, d.node)
		}
		defer d.sessions.starting.Leave(uid)
		return d.login(ctx, uid, question.Fields["user"], peer.Pid, answer)
	case siteconf.VerbDecline:
		job, err := number(question, "job")
		if err != nil {
			return nil, err
		}
		uid, err := number(question, "uid")
		if err != nil {
			return nil, err
		}
		return nil, d.optOuts.add(job, uid)
	case siteconf.VerbRelease:
		job, err := number(question, "job")
		if err != nil {
			return nil, err
		}
		if err := d.optOuts.forget(job); err != nil {
			return nil, err
		}
		return nil, d.release(ctx, siteconf.Allocation{Job: job}.ID())
	}
	return nil, fmt.Errorf("unknown question %s: install the same version of berthd and of the plugin", question.Verb)
}

// requestOf parses the fields of an attach question.
func requestOf(question siteconf.Message) (store.Request, error) {
	job, err := number(question, "job")
	if err != nil {
		return store.Request{}, err
	}
	uid, err := number(question, "uid")
	if err != nil {
		return store.Request{}, err
	}
	r := store.Request{Job: job, UID: uid, User: question.Fields["user"], Name: question.Fields["name"]}
	if list := question.Fields["nodes"]; list != "" {
		if r.Nodes, err = slurm.ExpandHosts(list); err != nil {
			return store.Request{}, fmt.Errorf("read nodes of job %d: %w", job, err)
		}
	}
	return r, nil
}

// maxLimit bounds how long a step waits for the job's first node, whose berthd may be away for
// 30 s.
const maxLimit = 32 * time.Second

// limitOf returns how long a step waits for the job's first node: less than the plugin waits for
// an answer. The steps after the extern step wait less long, or srun would give up before it has
// the reason. An earlier plugin does not send its limit.
func limitOf(question siteconf.Message) time.Duration {
	seconds, err := number(question, "limit")
	if err != nil || question.Fields["waited"] != "" {
		return attachTimeout
	}
	return min(time.Duration(seconds)*time.Second, maxLimit)
}

// number parses a field as an unsigned 32-bit number.
func number(question siteconf.Message, field string) (uint32, error) {
	n, err := strconv.ParseUint(question.Fields[field], 10, 32)
	if err != nil {
		return 0, fmt.Errorf("read field %s of %s: %w", field, question.Verb, err)
	}
	return uint32(n), nil
}

// status describes the pods of this node in one line for a person.
func (d *daemon) status() string {
	d.pods.mu.Lock()
	defer d.pods.mu.Unlock()
	var lines []string
	for id, local := range d.pods.local {
		pod, _ := local.here(d.node).On(d.node)
		line := fmt.Sprintf("%s uid %d %s", id, local.UID, pod.Address)
		if second := d.config.IPv6.Second(pod.Address); second.IsValid() {
			line += " " + second.String()
		}
		if gateway := d.gateways.Of(pod.Address); gateway.IsValid() {
			line += fmt.Sprintf(" gateway %s", gateway)
		}
		if local.problem != nil {
			line += fmt.Sprintf(" (%s)", local.problem)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}
