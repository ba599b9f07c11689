package rendezvous

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// PortRange is a range of TCP ports, both ends included.
type PortRange struct{ First, Last uint16 }

// DefaultPorts returns 21000-28999. These ports lie below Linux's ephemeral ports
// (32768-60999) and Kubernetes' node ports (30000-32767), so that a candidate is
// rarely in use by chance. They lie above Slurm's ports (6817-6819) and most
// services. Sites that configure a range for srun (SrunPortRange) mostly choose one
// above 60000.
func DefaultPorts() PortRange { return PortRange{First: 21000, Last: 28999} }

// ParsePortRange parses "21000-28999" or one port.
func ParsePortRange(text string) (PortRange, error) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	first, err1 := strconv.ParseUint(strings.TrimSpace(from), 10, 16)
	last, err2 := strconv.ParseUint(strings.TrimSpace(to), 10, 16)
	ports := PortRange{First: uint16(first), Last: uint16(last)}
	if err1 != nil || err2 != nil || ports.validate() != nil {
		return PortRange{}, fmt.Errorf("read the port range %q: want two ports between 1024 and 65535, as in 21000-28999", text)
	}
	return ports, nil
}

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

func (r PortRange) size() int { return int(r.Last) - int(r.First) + 1 }

func (r PortRange) validate() error {
	if r.First < 1024 || r.Last < r.First {
		return fmt.Errorf("the port range %s is not one between 1024 and 65535", r)
	}
	return nil
}

// candidates returns the ports that a step's head tries to listen on, in order.
// They are the same on every node, and mostly different for steps that run at the
// same time. They are not secret.
func candidates(step Step, ports PortRange, count int) []uint16 {
	count = min(count, ports.size())
	var found []uint16
	for round := 0; len(found) < count; round++ {
		purpose := "berth rendezvous port"
		if step.Joining {
			purpose = "berth joining port"
		}
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %q %q %d %d %d",
			purpose, step.Cluster, step.Job, step.Step, step.Attempt, round))
		port := ports.First + uint16(binary.BigEndian.Uint64(sum[:])%uint64(ports.size()))
		// If the port is already in the list, take the next one. So the loop ends
		// even in a small range.
		for slices.Contains(found, port) {
			if port == ports.Last {
				port = ports.First
			} else {
				port++
			}
		}
		found = append(found, port)
	}
	return found
}
