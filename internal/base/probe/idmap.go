package probe

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// fullRange is the number of subordinate ids that images may use: nobody is 65534.
const fullRange = 65536

// maxRanges bounds the lines of a map. The kernel accepts 340 (5 before 4.15).
const maxRanges = 64

// IDRange is one line of a uid_map or gid_map.
type IDRange struct {
	Inside, Outside, Count uint32
}

// IDMap maps ids of containers to ids of the machine.
type IDMap struct {
	// UIDs and GIDs start with id 0 inside, which is the user.
	UIDs, GIDs []IDRange
	// OneUID is true if only the user's own id can be mapped. Reason explains OneUID, or
	// why Complete is false. Remedy adds the missing ids.
	OneUID bool
	Reason string
	Remedy Remedy
	// Complete is true if every id from 0 to 65535 is mapped.
	Complete bool
	// NewUIDMap and NewGIDMap are the paths of the programs that write the maps. They
	// are empty if OneUID is true.
	NewUIDMap, NewGIDMap string
	// NameService is true if subordinate ids come from a name service (sssd, LDAP).
	// Only getsubids can read them, see AskNameService.
	NameService bool
}

// subRange is one range of subordinate ids.
type subRange struct {
	Start, Count uint32
}

// subEntry is a line of /etc/subuid or /etc/subgid: the owner is a name or a
// number.
type subEntry struct {
	Owner string
	subRange
}

// parseSubIDs parses the format of subuid(5). It ignores invalid lines, as
// newuidmap does.
func parseSubIDs(content []byte) []subEntry {
	var entries []subEntry
	for line := range strings.Lines(string(content)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) != 3 || fields[0] == "" || strings.HasPrefix(fields[0], "#") {
			continue
		}
		start, err := strconv.ParseUint(fields[1], 10, 32)
		if err != nil {
			continue
		}
		count, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil || count == 0 || start+count > math.MaxUint32 {
			continue
		}
		entries = append(entries, subEntry{fields[0], subRange{uint32(start), uint32(count)}})
	}
	return entries
}

// parseIDMap parses the content of /proc/PID/uid_map or gid_map.
func parseIDMap(content []byte) []IDRange {
	var ranges []IDRange
	for line := range strings.Lines(string(content)) {
		var r IDRange
		if n, err := fmt.Sscan(line, &r.Inside, &r.Outside, &r.Count); n == 3 && err == nil {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

// IDMap returns the map that a new user namespace of this user can have. It starts
// no process; if it sets NameService, AskNameService finds the ranges.
func (h *Host) IDMap(uid, gid int) IDMap {
	m := oneID(uid, gid)
	if h.users.subidFromNameService() {
		m.NameService = true
		m.Reason = "subordinate ids come from a name service (subid: in /etc/nsswitch.conf)"
		return m
	}
	owners := h.users.owners(uid)
	uids := ownedBy(parseSubIDs(h.read("/etc/subuid")), owners)
	gids := ownedBy(parseSubIDs(h.read("/etc/subgid")), owners)
	return h.withRanges(m, uid, gid, uids, gids)
}

// withRanges adds subordinate ranges to a map, or records why it cannot.
func (h *Host) withRanges(m IDMap, uid, gid int, uids, gids []subRange) IDMap {
	name := cmp.Or(h.users.name(uid), strconv.Itoa(uid))
	// Not usermod: it refuses users that are not in /etc/passwd.
	grant := Remedy{Admin: fmt.Sprintf("echo %s:%d:%d | tee -a /etc/subuid >> /etc/subgid", name, h.users.freeSubIDs(), fullRange)}
	if len(uids) == 0 || len(gids) == 0 {
		m.Reason = fmt.Sprintf("no subordinate ids for %s in /etc/subuid and /etc/subgid", name)
		if len(uids) > 0 || len(gids) > 0 {
			m.Reason = fmt.Sprintf("subordinate ids for %s are in only one of /etc/subuid and /etc/subgid", name)
		}
		m.Remedy = grant
		return m
	}
	var reason string
	var remedy Remedy
	var newuid, newgid string
	if newuid, reason, remedy = h.mapProgram("newuidmap"); reason == "" {
		newgid, reason, remedy = h.mapProgram("newgidmap")
	}
	if reason == "" {
		reason, remedy = privilegeBarred(h)
	}
	uidLines := mapLines(uid, mapped(uids, parseIDMap(h.read("/proc/self/uid_map"))))
	gidLines := mapLines(gid, mapped(gids, parseIDMap(h.read("/proc/self/gid_map"))))
	if reason == "" && (len(uidLines) == 1 || len(gidLines) == 1) {
		reason = "the subordinate ids are not mapped in the user namespace that this process is in (a container?)"
		remedy = Remedy{User: "run berth outside of the container"}
	}
	if reason != "" {
		m.Reason, m.Remedy = reason, remedy
		return m
	}
	m.OneUID, m.Reason, m.UIDs, m.GIDs = false, "", uidLines, gidLines
	m.NewUIDMap, m.NewGIDMap = newuid, newgid
	m.Complete = total(uidLines) >= fullRange && total(gidLines) >= fullRange
	if !m.Complete {
		m.Reason = fmt.Sprintf("only %d uids and %d gids for %s, and images may use %d", total(uidLines), total(gidLines), name, fullRange)
		m.Remedy = grant
	}
	return m
}

func oneID(uid, gid int) IDMap {
	return IDMap{
		OneUID: true,
		UIDs:   []IDRange{{0, uint32(uid), 1}},
		GIDs:   []IDRange{{0, uint32(gid), 1}},
	}
}

// mapLines maps id 0 to the user, and the ids from 1 on to the subordinate ranges.
// It omits ids that would be mapped twice, because the kernel would refuse the
// whole map. Adjacent ranges stay separate: newuidmap checks each line against its
// files.
func mapLines(own int, ranges []subRange) []IDRange {
	lines := []IDRange{{0, uint32(own), 1}}
	next := uint64(1)
	add := func(start, end uint64) { // end is exclusive
		if start < end && len(lines) < maxRanges && next+(end-start) <= math.MaxUint32 {
			lines = append(lines, IDRange{uint32(next), uint32(start), uint32(end - start)})
			next += end - start
		}
	}
	ranges = slices.Clone(ranges)
	slices.SortStableFunc(ranges, func(a, b subRange) int { return cmp.Compare(a.Start, b.Start) })
	covered := uint64(0)
	for _, r := range ranges {
		start, end := max(uint64(r.Start), covered), uint64(r.Start)+uint64(r.Count)
		if end <= start {
			continue
		}
		covered = end
		if me := uint64(own); start <= me && me < end {
			add(start, me)
			add(me+1, end)
			continue
		}
		add(start, end)
	}
	return lines
}

// mapped returns the parts of the ranges that exist in the user namespace with the given
// map. If the map is empty, because /proc is missing, it returns all ranges.
func mapped(ranges []subRange, ids []IDRange) []subRange {
	if len(ids) == 0 {
		return ranges
	}
	var inside []subRange
	for _, r := range ranges {
		for _, id := range ids {
			start := max(uint64(r.Start), uint64(id.Inside))
			end := min(uint64(r.Start)+uint64(r.Count), uint64(id.Inside)+uint64(id.Count))
			if start < end {
				inside = append(inside, subRange{uint32(start), uint32(end - start)})
			}
		}
	}
	return inside
}

func total(lines []IDRange) uint64 {
	sum := uint64(0)
	for _, line := range lines {
		sum += uint64(line.Count)
	}
	return sum
}

func ownedBy(entries []subEntry, owners []string) []subRange {
	var ranges []subRange
	for _, entry := range entries {
		if slices.Contains(owners, entry.Owner) {
			ranges = append(ranges, entry.subRange)
		}
	}
	return ranges
}

// mapProgram finds newuidmap or newgidmap and checks that it can do its work.
func (h *Host) mapProgram(name string) (file, reason string, remedy Remedy) {
	remedy.Admin = "apt-get install uidmap   # Debian, Ubuntu; elsewhere: dnf install shadow-utils"
	search := cmp.Or(h.getenv("PATH"), "/usr/bin:/bin:/usr/sbin:/sbin")
	for dir := range strings.SplitSeq(search, string(os.PathListSeparator)) {
		candidate := filepath.Join(dir, name)
		if filepath.IsAbs(dir) && h.exists(candidate) {
			file = candidate
			break
		}
	}
	if file == "" {
		return "", name + " is not in PATH", remedy
	}
	if h.kernel.PrivilegedFile(file) == "" {
		capability := "cap_setuid"
		if name == "newgidmap" {
			capability = "cap_setgid"
		}
		return "", file + " is neither setuid root nor has it file capabilities", Remedy{Admin: "setcap " + capability + "+ep " + file}
	}
	if fs, err := h.kernel.Statfs(file); err == nil && fs.NoSUID {
		mount, _ := mountOf(h.mounts(), file)
		return "", file + " is on a file system mounted nosuid, so it has no privilege", Remedy{Admin: "mount -o remount,suid " + cmp.Or(mount.Point, "/")}
	}
	return file, "", Remedy{}
}

// privilegeBarred returns the reason why no program of this process can gain
// privileges, if there is one.
func privilegeBarred(h *Host) (string, Remedy) {
	status := h.status()
	if status["NoNewPrivs"] == "1" {
		return "the process has no_new_privs set, so newuidmap has no privilege", Remedy{
			Admin: "find who sets it: a container, a PAM module, or NoNewPrivileges= in the unit of slurmd or sshd"}
	}
	const setgid, setuid = 6, 7
	bounds, err := strconv.ParseUint(status["CapBnd"], 16, 64)
	if err == nil && bounds&(1<<setuid) == 0 || err == nil && bounds&(1<<setgid) == 0 {
		return "the process's capability bounding set lacks cap_setuid or cap_setgid, so newuidmap has no privilege", Remedy{
			Admin: "find who drops it: a container, or CapabilityBoundingSet= in the unit of slurmd or sshd"}
	}
	return "", Remedy{}
}
