package objects

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"berth.dev/berth/internal/kube/savedstate"
)

// ipAllocator is upstream's name for the allocator of Service addresses.
const ipAllocator = "ipallocator.k8s.io"

// Moved moves the addresses of Services from the ranges of the last cluster to the ranges
// of the next one. It returns all records for the next cluster, and notices for the user
// about empty volumes and about Services that it omits.
func Moved(records []savedstate.Record, from, to []netip.Prefix) (moved []savedstate.Record, notices []string, err error) {
	var emptied, unreachable []string
	for _, record := range records {
		name, isService := strings.CutPrefix(record.Key, "services/specs/")
		if !isService {
			moved = append(moved, record)
			if claim, ok := strings.CutPrefix(record.Key, "persistentvolumeclaims/"); ok && emptyNow(record) {
				emptied = append(emptied, claim)
			}
			continue
		}
		service, err := decode[*corev1.Service](record)
		if err != nil {
			return nil, nil, err
		}
		if err := moveService(service, from, to); err != nil {
			unreachable = append(unreachable, name)
			continue
		}
		if record, err = encode(record.Key, service); err != nil {
			return nil, nil, err
		}
		moved = append(moved, record)
		for _, text := range service.Spec.ClusterIPs {
			if text == corev1.ClusterIPNone {
				continue
			}
			address, err := encode("ipaddresses/"+text, Address(service, text))
			if err != nil {
				return nil, nil, err
			}
			moved = append(moved, address)
		}
	}
	if len(emptied) > 0 {
		notices = append(notices, fmt.Sprintf("the claims %s have new, empty volumes: their data were on nodes of the last job, and are not saved; --shared-volumes keeps data", strings.Join(emptied, ", ")))
	}
	if len(unreachable) > 0 {
		notices = append(notices, fmt.Sprintf("the Services %s are not restored: this cluster has no addresses of their family (--ip-family)", strings.Join(unreachable, ", ")))
	}
	return moved, notices, nil
}

// emptyNow reports whether a claim has lost its volume and waits for a new one.
func emptyNow(record savedstate.Record) bool {
	claim, err := decode[*corev1.PersistentVolumeClaim](record)
	return err == nil && claim.Spec.VolumeName == "" && claim.Annotations[emptyAnnotation] != ""
}

var errNoFamily = errors.New("no range of the address's family")

// moveService replaces a Service's addresses in the old ranges by addresses in
// the new ranges. It removes addresses of a family that the new cluster lacks.
func moveService(service *corev1.Service, from, to []netip.Prefix) error {
	spec := &service.Spec
	if len(spec.ClusterIPs) == 0 || spec.ClusterIPs[0] == corev1.ClusterIPNone {
		return nil // headless, or only a name
	}
	var addresses []string
	var families []corev1.IPFamily
	for i, text := range spec.ClusterIPs {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return err
		}
		moved, err := move(address, from, to)
		if errors.Is(err, errNoFamily) {
			continue
		}
		if err != nil {
			return err
		}
		addresses = append(addresses, moved.String())
		if i < len(spec.IPFamilies) {
			families = append(families, spec.IPFamilies[i])
		}
	}
	if len(addresses) == 0 {
		return errNoFamily
	}
	if len(addresses) < len(spec.ClusterIPs) {
		single := corev1.IPFamilyPolicySingleStack
		spec.IPFamilyPolicy = &single
	}
	spec.ClusterIP, spec.ClusterIPs, spec.IPFamilies = addresses[0], addresses, families
	return nil
}

// move returns the address with the same offset in the new range of its family as
// the given address has in the old range.
func move(address netip.Addr, from, to []netip.Prefix) (netip.Addr, error) {
	source := slices.IndexFunc(from, func(p netip.Prefix) bool { return p.Contains(address) })
	target := slices.IndexFunc(to, func(p netip.Prefix) bool { return p.Addr().BitLen() == address.BitLen() })
	switch {
	case target < 0:
		return address, errNoFamily
	case source < 0:
		return address, fmt.Errorf("address %s is in no range of Services", address)
	case from[source].Bits() != to[target].Bits():
		return address, fmt.Errorf("the ranges %s and %s of Services differ in size", from[source], to[target])
	}
	bytes, base := address.AsSlice(), to[target].Masked().Addr().AsSlice()
	for bit := range to[target].Bits() {
		mask := byte(0x80) >> (bit % 8)
		bytes[bit/8] = bytes[bit/8]&^mask | base[bit/8]&mask
	}
	moved, _ := netip.AddrFromSlice(bytes)
	return moved, nil
}

// Address returns upstream's record of an address that a Service uses. text is one of the
// Service's ClusterIPs.
func Address(service *corev1.Service, text string) *networkingv1.IPAddress {
	family := "IPv4"
	if strings.Contains(text, ":") {
		family = "IPv6"
	}
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: text, UID: uuid.NewUUID(), CreationTimestamp: metav1.Now(),
			Labels: map[string]string{networkingv1.LabelIPAddressFamily: family, networkingv1.LabelManagedBy: ipAllocator},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: service.Namespace, Name: service.Name,
		}},
	}
}
