package probe

import (
	"cmp"
	"strconv"
	"strings"
)

// users looks up users and their subordinate ids in files and in the environment.
// nameservice.go asks the name service.
type users struct {
	files
	uid    int // of this process
	getenv func(string) string
}

// freeSubIDs returns the start of a full range that nobody has, after all assigned
// ranges, as useradd would choose it.
func (u users) freeSubIDs() uint64 {
	free := uint64(100000)
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		for _, entry := range parseSubIDs(u.read(file)) {
			free = max(free, uint64(entry.Start)+uint64(entry.Count))
		}
	}
	return free
}

// owners returns the names that may stand for a user in the files.
func (u users) owners(uid int) []string {
	owners := []string{strconv.Itoa(uid)}
	if name := u.name(uid); name != "" {
		owners = append(owners, name)
	}
	return owners
}

// name returns the name of a user, or nothing. A user from LDAP is not in
// /etc/passwd, so the name comes from the environment. A wrong name does no harm:
// newuidmap looks up the user itself.
func (u users) name(uid int) string {
	for line := range strings.Lines(string(u.read("/etc/passwd"))) {
		fields := strings.Split(line, ":")
		if len(fields) > 3 && fields[2] == strconv.Itoa(uid) {
			return fields[0]
		}
	}
	if uid != u.uid {
		return ""
	}
	if u.getenv("SLURM_JOB_UID") == strconv.Itoa(uid) && u.getenv("SLURM_JOB_USER") != "" {
		return u.getenv("SLURM_JOB_USER")
	}
	return cmp.Or(u.getenv("USER"), u.getenv("LOGNAME"))
}

// subidFromNameService reports whether nsswitch.conf names a source of subordinate
// ids. If so, shadow 4.9 and newer do not read the files.
func (u users) subidFromNameService() bool {
	for line := range strings.Lines(string(u.read("/etc/nsswitch.conf"))) {
		line, _, _ = strings.Cut(line, "#")
		if sources, ok := strings.CutPrefix(strings.TrimSpace(line), "subid:"); ok {
			fields := strings.Fields(sources)
			return len(fields) > 0 && fields[0] != "files"
		}
	}
	return false
}
