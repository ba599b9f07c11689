package probe

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// AskNameService completes a map whose NameService is true by asking
// getsubids, which comes with newer shadow packages and knows sssd and LDAP.
// It forks, and a name service can be slow: it takes trialLimit at most. A
// map that needs nothing is returned as it is.
func (h *Host) AskNameService(ctx context.Context, m IDMap, uid, gid int) IDMap {
	if !m.NameService || !m.OneUID {
		return m
	}
	name := h.users.name(uid)
	if name == "" {
		m.Reason += ", and the name of the user is not known"
		m.Remedy = Remedy{User: "export USER=$(id -un)"}
		return m
	}
	ctx, cancel := context.WithTimeout(ctx, trialLimit)
	defer cancel()
	var ranges [2][]subRange
	for i, arguments := range [][]string{{name}, {"-g", name}} {
		output, err := exec.CommandContext(ctx, "getsubids", arguments...).Output()
		if err != nil {
			m.Reason += fmt.Sprintf(", and getsubids %s fails: %v", strings.Join(arguments, " "), err)
			m.Remedy = Remedy{Admin: "dnf install shadow-utils-subid   # or apt-get install uidmap: for getsubids"}
			return m
		}
		ranges[i] = parseGetsubids(output)
	}
	return h.withRanges(m, uid, gid, ranges[0], ranges[1])
}

// parseGetsubids reads "0: alice 100000 65536".
func parseGetsubids(output []byte) []subRange {
	var ranges []subRange
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line)
		if len(fields) != 4 {
			continue
		}
		for _, entry := range parseSubIDs([]byte(strings.Join(fields[1:], ":"))) {
			ranges = append(ranges, entry.subRange)
		}
	}
	return ranges
}
