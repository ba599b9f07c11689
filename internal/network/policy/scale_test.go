package policy

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkChange measures the work of a node when a pod changes: the new State, its
// rules, and nft loading them. The cluster has 1,000 pods in 10 namespaces with 10
// policies each. It also measures a look-up in the State.
func BenchmarkChange(b *testing.B) {
	o := objects{}
	for n := range 10 {
		for p := range 100 {
			a := netip.AddrFrom4([4]byte{10, byte(n), 0, byte(p + 1)})
			pod := podOf(fmt.Sprintf("n%d", n), fmt.Sprintf("p%d", p%10), a.String())
			pod.Spec.NodeName = fmt.Sprintf("node-%d", p%10)
			o.Pods = append(o.Pods, pod)
		}
		for p := range 10 {
			text := fmt.Sprintf(`{metadata: {namespace: n%d, name: p%d}, spec: {podSelector: {matchLabels: {pod: p%d}}, policyTypes: [Ingress, Egress],
				ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {pod: p%d}}}], ports: [{port: 80}]}],
				egress: [{to: [{namespaceSelector: {}}]}]}}`, n, p, p, (p+1)%10)
			o.Policies = append(o.Policies, policyOf(b, text))
		}
	}
	for n := range 10 {
		o.Namespaces = append(o.Namespaces, &corev1.Namespace{})
		o.Namespaces[n].Name = fmt.Sprintf("n%d", n)
	}
	var state *State
	var rules string
	b.Run("state", func(b *testing.B) {
		for b.Loop() {
			state = compile(o)
		}
	})
	b.Run("rules", func(b *testing.B) {
		for b.Loop() {
			rules = state.Ruleset("node-1")
		}
		b.ReportMetric(float64(len(rules)), "bytes")
	})
	b.Run("nft", func(b *testing.B) {
		for b.Loop() {
			nft(b, rules)
		}
		nft(b, Removal())
	})
	from, to := netip.MustParseAddr("10.1.0.3"), netip.MustParseAddrPort("10.2.0.2:80")
	b.Run("permits", func(b *testing.B) {
		for b.Loop() {
			if !state.permits(TCP, from, to) {
				b.Fatal("not permitted")
			}
		}
	})
}
