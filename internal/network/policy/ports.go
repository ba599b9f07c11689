package policy

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Protocol is the number of a transport protocol in IP headers.
type Protocol uint8

// The protocols whose ports policies can name.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// Ports is an interval of ports of one protocol, including both ends.
type Ports struct {
	Protocol    Protocol
	First, Last uint16
}

func (p Ports) contain(protocol Protocol, port uint16) bool {
	return p.Protocol == protocol && p.First <= port && port <= p.Last
}

func comparePorts(a, b Ports) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
}

// split separates numbered ports from named ones, which pods define. An entry without a
// port stands for all ports of its protocol.
func split(ports []networkingv1.NetworkPolicyPort) (numbered []Ports, named []networkingv1.NetworkPolicyPort) {
	for _, p := range ports {
		protocol := protocolOf(p.Protocol)
		switch {
		case p.Port == nil:
			numbered = append(numbered, Ports{protocol, 0, 65535})
		case p.Port.Type == intstr.String:
			named = append(named, p)
		default:
			first := uint16(p.Port.IntVal)
			last := first
			if p.EndPort != nil {
				last = uint16(*p.EndPort)
			}
			numbered = append(numbered, Ports{protocol, first, last})
		}
	}
	return numbered, named
}

// portsNamed returns the ports of a pod's containers that have the wanted name.
func portsNamed(p *corev1.Pod, wanted networkingv1.NetworkPolicyPort) []Ports {
	protocol := protocolOf(wanted.Protocol)
	var ports []Ports
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, container := range containers {
			for _, port := range container.Ports {
				if port.Name == wanted.Port.StrVal && protocolOf(&port.Protocol) == protocol {
					number := uint16(port.ContainerPort)
					ports = append(ports, Ports{protocol, number, number})
				}
			}
		}
	}
	return ports
}

func protocolOf(p *corev1.Protocol) Protocol {
	if p == nil {
		return TCP
	}
	switch *p {
	case corev1.ProtocolUDP:
		return UDP
	case corev1.ProtocolSCTP:
		return SCTP
	default:
		return TCP
	}
}

// common returns the intersection of a and b.
func common(a, b []Ports) []Ports {
	var both []Ports
	for _, x := range a {
		for _, y := range b {
			first, last := max(x.First, y.First), min(x.Last, y.Last)
			if x.Protocol == y.Protocol && first <= last {
				both = append(both, Ports{x.Protocol, first, last})
			}
		}
	}
	return both
}

// joined returns the ports of one protocol, sorted and merged: nft refuses
// overlaps.
func joined(ports []Ports, protocol Protocol) []Ports {
	var in []Ports
	for _, p := range ports {
		if p.Protocol == protocol {
			in = append(in, p)
		}
	}
	slices.SortFunc(in, comparePorts)
	var out []Ports
	for _, p := range in {
		if n := len(out); n > 0 && int(p.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, p.Last)
			continue
		}
		out = append(out, p)
	}
	return out
}
