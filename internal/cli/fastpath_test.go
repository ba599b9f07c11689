package cli

import "testing"

func TestFastPathDescription(t *testing.T) {
	for want, counted := range map[string]map[string]int{
		"7 connections made by the hosts, 0 not":                    {"connected": 7, "accepted": 9},
		"9 connections made by the hosts (2 to the outside), 0 not": {"connected": 7, "connected to the outside": 2},
		"1 connections made by the hosts, 2 not: 2 (too many connections); 3 that are not TCP; 1 calls refused": {
			"connected": 1, "overlay: too many connections": 2, "overlay: not TCP": 3, "refused: listen on a switched socket": 1,
		},
	} {
		if got := describeFastPath(counted); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
