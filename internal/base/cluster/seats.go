package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// DefaultSeats is the number of seats of a cluster with --elastic without a number.
const DefaultSeats = 64

// DefaultIdle is the time after which a node that a pod has brought leaves.
const DefaultIdle = time.Minute

// maxSeats bounds the seats. The cluster has at least one other node.
const maxSeats = maxNodes - 1

// ForLabel is the label and the taint of a node of another job that runs only the pods that it is
// for.
const ForLabel = "slurm.berth.dev/for"

// WishesGate is the scheduling gate of a pod that may get a node for itself.
const WishesGate = "slurm.berth.dev/wishes"

// DesignSeat makes the plan of a node of another job, which has a name of SeatName and takes
// the seat with an index from 0 in a cluster that Design made from offers. The nodes of the cluster have plans
// already, so an offer that does not fit is an error.
func DesignSeat(spec Spec, offers []Offer, seat int, name string, joining Offer) (Plan, error) {
	d, err := newDesign(spec, offers)
	if err != nil {
		return Plan{}, err
	}
	if seat < 0 || seat >= spec.Seats {
		return Plan{}, fmt.Errorf("design the node in seat %d of %d: there is no such seat", seat+1, spec.Seats)
	}
	if spec.AddressBlock == "" && !free(d.block, joining.Used) {
		return Plan{}, fmt.Errorf("give node %s addresses of the cluster: a route of this host overlaps %s; start the cluster with --address-block and a range that no host uses", joining.Host, d.block)
	}
	if d.ula.IsValid() {
		switch {
		case joining.IPv6 == Nowhere:
			return Plan{}, fmt.Errorf("give node %s addresses of the cluster: pods have IPv6 addresses there, and the kernel of this host has no IPv6; start the cluster with --ip-family %s", joining.Host, IPv4Only)
		case joining.RefusedIPv6 != "":
			return Plan{}, fmt.Errorf("give node %s addresses of the cluster: the kernel of this host takes no rules for Services with IPv6 addresses (%s); start the cluster with --ip-family %s", joining.Host, joining.RefusedIPv6, IPv4Only)
		case !free(d.ula, joining.Used):
			return Plan{}, fmt.Errorf("give node %s addresses of the cluster: a route of this host overlaps %s; start the cluster with --ip-family %s", joining.Host, d.ula, IPv4Only)
		}
	}
	return d.plan(len(d.members)+seat, name, joining), nil
}

// Blocks holds the blocks of a cluster's addresses. IPv6 is invalid if the cluster has only IPv4.
type Blocks struct{ IPv4, IPv6 netip.Prefix }

// BlocksOf returns the blocks of a cluster of Design.
func BlocksOf(spec Spec, offers []Offer) (Blocks, error) {
	d, err := newDesign(spec, offers)
	return Blocks{d.block, d.ula}, err
}

// SeatName returns the name of a node of another job. A seat that is taken again has a node
// with another name.
func SeatName(host, job string) string {
	end := "-" + job
	name := nodeName(host)
	return strings.TrimRight(name[:min(len(name), LongestName-len(end))], "-.") + end
}

// checkSeats checks the options that a cluster with seats can have.
func (s Spec) checkSeats() (problems []error) {
	if s.Idle < 0 {
		problems = append(problems, fmt.Errorf("--elastic-idle %s: give a time such as 60s or 10m", s.Idle))
	}
	if s.Seats == 0 {
		if s.Idle > 0 {
			problems = append(problems, errors.New("--elastic-idle: it concerns nodes that pods bring; give --elastic, too"))
		}
		return problems
	}
	if s.Seats < 0 || s.Seats > maxSeats {
		problems = append(problems, fmt.Errorf("--elastic %d: give the number of nodes of other jobs, 1 to %d", s.Seats, maxSeats))
	}
	if s.HighlyAvailable {
		problems = append(problems, errors.New("--elastic with --ha: a node that takes the cluster over would not know the nodes of other jobs yet; give one of them"))
	}
	if s.NodesPerHost > 1 {
		problems = append(problems, errors.New("--elastic with --nodes-per-host: nodes of other jobs do not reach several nodes on one host; give one of them"))
	}
	return problems
}
