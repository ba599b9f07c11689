package netrole

import (
	"net/netip"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/network/egress"
)

// refusedByUser returns the ranges of addresses that the user closes to pods.
func refusedByUser(spec cluster.Spec) (ranges []netip.Prefix, err error) {
	for _, refused := range spec.Network.Refuse {
		prefix, err := netip.ParsePrefix(refused)
		if err != nil {
			return nil, exitcode.Wrap(exitcode.Usage, err)
		}
		ranges = append(ranges, prefix.Masked())
	}
	return ranges, nil
}

// RefusedOutside returns all ranges closed to pods, for processes that connect to
// the outside on their behalf.
func RefusedOutside(spec cluster.Spec, plan cluster.Plan) ([]netip.Prefix, error) {
	config := egress.Default()
	config.Gateway, config.Cluster = plan.Addresses.Gateway, plan.Addresses.Ranges()
	more, err := refusedByUser(spec)
	config.Refuse = append(config.Refuse, more...)
	return config.Refused(), err
}
