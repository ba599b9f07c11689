package siteconf

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxLabel is the maximum length of a label in the DNS.
const maxLabel = 63

// label turns a user's text into one DNS label. It returns "" if the text contains no
// letter or digit.
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

// localhost leads to the asker itself (RFC 6761), and no job or service can have that name.
const localhost = "localhost"

// JobLabel returns the label of a job, or of the host of sessions.
func (a Allocation) JobLabel() string {
	name := a.Name
	if a.Reserved {
		name = ""
	}
	for _, text := range []string{a.Login, name} {
		if l := label(text); l != "" && l != localhost {
			return l
		}
	}
	return strconv.FormatUint(uint64(a.Job), 10)
}

// SameLabel reports whether the name of a job has the same label as the first part of the name of
// a host. Programs in the user's jobs that look for the host would find the job.
func SameLabel(job, host string) bool {
	host, _, _ = strings.Cut(host, ".")
	return label(job) != "" && label(job) == label(host)
}

// UserLabel returns the label of the allocation's user. If the name cannot be a label, the user's
// number makes the label unique.
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

// Domains returns the search domains of a job: its own, its user's, and the site's.
func (a Allocation) Domains(cluster string, site []string) []string {
	user := a.UserLabel() + "." + cluster
	return append([]string{a.JobLabel() + "." + user, user}, site...)
}

const (
	// MaxNames bounds the number of names that a user gives a job.
	MaxNames = 64
	// maxText bounds the total length of these names in bytes, with commas: all nodes of the job keep them,
	// and etcd keeps former ones for an hour.
	maxText = 1024
)

// ParseNames parses the names that a user gives a job, such as web or web.default,
// separated by commas. They are relative to the job's own name. The name of a pod is
// not allowed.
func ParseNames(text string) ([]string, error) {
	var names []string
	var problems []error
	for name := range strings.SplitSeq(text, ",") {
		if name == "" {
			continue
		}
		if err := checkName(name); err != nil {
			problems = append(problems, err)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > MaxNames {
		return nil, fmt.Errorf("%d names, and a job may have %d", len(names), MaxNames)
	}
	if length := len(strings.Join(names, ",")); length > maxText {
		return nil, fmt.Errorf("the names have %d bytes, and a job may have %d", length, maxText)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return names, nil
}

func checkName(name string) error {
	labels := strings.Split(name, ".")
	if len(labels) > 2 {
		return fmt.Errorf("name %.80q: it has %d parts: take one, or two as in web.default", name, len(labels))
	}
	for _, l := range labels {
		if l == "" || label(l) != l {
			return fmt.Errorf("name %.80q: write each part with lowercase letters, digits, and dashes between them, %d at most", name, maxLabel)
		}
	}
	if name == localhost {
		return fmt.Errorf("name %q: every host has that name", name)
	}
	if rest, found := strings.CutPrefix(labels[0], "pod"); found && len(labels) == 1 && rest != "" && strings.Trim(rest, "0123456789") == "" {
		return fmt.Errorf("name %q: a pod has that name", name)
	}
	return nil
}
