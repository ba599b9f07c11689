package policy

import (
	"testing"

	"berth.dev/berth/internal/testutil"
)

func TestRulesetGolden(t *testing.T) {
	for name, policies := range map[string]string{
		"deny": denyAll,
		"mixed": `{spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {}}], ports: [{port: http}, {port: 8000, endPort: 8010}, {port: 8005, endPort: 8011}]}, {ports: [{protocol: UDP}]}]}}` + "\n---\n" +
			`{metadata: {namespace: z}, spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: "fd00::/16", except: ["fd00::1:0/112"]}}, {podSelector: {}}]}, {ports: [{protocol: SCTP, port: 7}]}]}}`,
	} {
		state := compile(testCluster(t, policies))
		got := state.Ruleset("node-x") + "# and on the other node\n" + state.Ruleset("node-z")
		testutil.Golden(t, name+".nft", got)
	}
	if got := compile(testCluster(t, `{spec: {podSelector: {matchLabels: {pod: none}}}}`)).Ruleset("node-x"); got != "" {
		t.Errorf("rules where no pod is isolated:\n%s", got)
	}
	if got := (&State{}).Ruleset("node-x"); got != "" {
		t.Errorf("rules without policies:\n%s", got)
	}
}
