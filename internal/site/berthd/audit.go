package berthd

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"berth.dev/berth/internal/site/siteconf"
)

// audit records the networks of users over time: a line of JSON when a pod joins or
// leaves. The file is opened for each line, so that it can be rotated at any time.
type audit struct {
	path string
	node string
	ipv6 siteconf.IPv6
	log  *slog.Logger
	now  func() time.Time
}

// auditLine is one line of the file.
type auditLine struct {
	Time    time.Time `json:"time"`
	Event   string    `json:"event"`
	Node    string    `json:"node"`
	Pod     string    `json:"pod"`
	UID     uint32    `json:"uid"`
	User    string    `json:"user"`
	Job     uint32    `json:"job,omitempty"`
	Name    string    `json:"name,omitempty"`
	Network uint32    `json:"network,omitempty"`
	Address string    `json:"address,omitempty"`
	IPv6    string    `json:"ipv6,omitempty"`
	Reason  string    `json:"reason,omitempty"`
}

// The events of the file.
const (
	auditJoined  = "joined"
	auditLeft    = "left"
	auditRefused = "refused"
	auditLimited = "limited"
)

// write adds a line. It must not stop a job, so it logs a line that it cannot write.
func (a *audit) write(event string, what siteconf.Allocation, reason error) {
	if a.path == "" {
		return
	}
	line := auditLine{
		Time: a.now().UTC(), Event: event, Node: a.node, Pod: what.ID(), UID: what.UID, User: what.User,
		Job: what.Job, Name: what.Name, Network: what.VNI,
	}
	if pod, here := what.On(a.node); here {
		line.Address = pod.Address.String()
		if second := a.ipv6.Second(pod.Address); second.IsValid() {
			line.IPv6 = second.String()
		}
	}
	if reason != nil {
		line.Reason = reason.Error()
	}
	if err := a.append(line); err != nil {
		a.log.Error("write the audit log", "error", err, "line", fmt.Sprintf("%+v", line))
	}
}

func (a *audit) append(line auditLine) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(a.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	// A single write keeps the lines of several writers apart.
	_, err = file.Write(append(text, '\n'))
	return errors.Join(err, file.Close())
}
