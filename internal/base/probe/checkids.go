package probe

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

const oneUIDCost = "one uid only: containers run as root inside, every file belongs to you, and runAsUser is not honoured"

// checkIDs answers for the subordinate ids, the programs that map them, and
// the order among the users that they are given to.
func checkIDs(h *Host, ids IDMap, tried outcomes) []Result {
	r := Result{Name: "subordinate-ids", Title: "subordinate ids", Level: Recommended, OK: Yes}
	var ranges []string
	for _, line := range ids.UIDs[1:] {
		ranges = append(ranges, fmt.Sprintf("%d-%d", line.Outside, uint64(line.Outside)+uint64(line.Count)-1))
	}
	r.Found = strings.Join(ranges, ", ") + " by " + ids.NewUIDMap
	switch o, ok := tried[trialIDMap]; {
	case ids.OneUID:
		r.OK, r.Found, r.Cost, r.Remedy = No, ids.Reason, oneUIDCost, ids.Remedy
	case ok && !o.ok():
		r.OK, r.Found, r.Cost = No, o.Error, oneUIDCost
		r.Remedy = Remedy{Admin: "make newuidmap and newgidmap work for this user: getent passwd " + strconv.Itoa(h.uid) + " must answer, and its name must stand in /etc/subuid and /etc/subgid"}
	case !ids.Complete:
		r.OK, r.Found = Degraded, ids.Reason
		r.Cost, r.Remedy = "files of images that belong to higher ids have another owner in pods", ids.Remedy
	}
	results := []Result{r}
	if ids := parseIDMap(h.read("/proc/self/uid_map")); h.uid == 0 && len(ids) == 1 && ids[0] == (IDRange{0, 0, math.MaxUint32}) {
		results = append(results, Result{Name: "user", Title: "unprivileged user", Level: Recommended, OK: Degraded, Found: "this is root",
			Cost:   "pods are separated from root's files and processes by less than they are from another user's",
			Remedy: Remedy{User: "run berth as a user: it gains nothing from root"}})
	}
	if overlap := subIDOverlap(h); overlap != "" && !ids.OneUID {
		results = append(results, Result{Name: "subordinate-ids-shared", Title: "own subordinate ids", Level: Recommended, OK: Degraded,
			Found: overlap, Cost: "the other one can read and change the files of your pods, and you theirs",
			Remedy: Remedy{Admin: fmt.Sprintf("give the user another range in /etc/subuid and /etc/subgid, from %d on", h.users.freeSubIDs())}})
	}
	return results
}

// subIDOverlap names another holder of an id that is subordinate to this user:
// another user's range, or a user. This happens where LDAP numbers people from
// 100000 on.
func subIDOverlap(h *Host) string {
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		entries := parseSubIDs(h.read(file))
		owners := h.users.owners(h.uid)
		for _, mine := range entries {
			if !slices.Contains(owners, mine.Owner) {
				continue
			}
			for _, other := range entries {
				if !slices.Contains(owners, other.Owner) && overlap(mine.subRange, other.subRange) {
					return fmt.Sprintf("%s gives ids of %d-%d to %s as well", file, mine.Start, uint64(mine.Start)+uint64(mine.Count)-1, other.Owner)
				}
			}
			if name := userIn(h, mine.subRange); name != "" {
				return fmt.Sprintf("%s gives %d-%d, which holds the id of user %s", file, mine.Start, uint64(mine.Start)+uint64(mine.Count)-1, name)
			}
		}
	}
	return ""
}

func overlap(a, b subRange) bool {
	return uint64(a.Start) < uint64(b.Start)+uint64(b.Count) && uint64(b.Start) < uint64(a.Start)+uint64(a.Count)
}

// userIn returns a user whose own id lies in a range.
func userIn(h *Host, r subRange) string {
	if overlap(r, subRange{uint32(h.uid), 1}) {
		return cmp.Or(h.users.name(h.uid), "you")
	}
	for line := range strings.Lines(string(h.read("/etc/passwd"))) {
		fields := strings.Split(line, ":")
		if len(fields) < 4 {
			continue
		}
		if uid, err := strconv.ParseUint(fields[2], 10, 32); err == nil && overlap(r, subRange{uint32(uid), 1}) {
			return fields[0]
		}
	}
	return ""
}
