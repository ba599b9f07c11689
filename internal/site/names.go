package site

import (
	"fmt"
	"strconv"
	"strings"
)

// maxLabel is how long a part of a name in the DNS may be.
const maxLabel = 63

// label makes one part of a name of what somebody has chosen, or nothing if
// there is no letter or digit in it.
func label(text string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, text)
	return strings.Trim(clean[:min(len(clean), maxLabel)], "-")
}

// JobLabel is that of a job in names, or of the host of sessions.
func (a Allocation) JobLabel() string {
	for _, text := range []string{a.Login, a.Name} {
		if l := label(text); l != "" {
			return l
		}
	}
	return strconv.FormatUint(uint64(a.Job), 10)
}

// UserLabel is that of its user. Where a name cannot be one as it is, the user's
// number makes it nobody's else.
func (a Allocation) UserLabel() string {
	l := label(a.User)
	if l == a.User && l != "" {
		return l
	}
	suffix := fmt.Sprintf("-%d", a.UID)
	if l == "" {
		l = "user"
	}
	return strings.TrimRight(l[:min(len(l), maxLabel-len(suffix))], "-") + suffix
}

// Domains are where the names of a job are looked for: among its pods, its
// user's jobs, and then where the site says.
func (a Allocation) Domains(cluster string, site []string) []string {
	user := a.UserLabel() + "." + cluster
	return append([]string{a.JobLabel() + "." + user, user}, site...)
}
