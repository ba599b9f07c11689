package record

// firstSchema called berth with --fast-path off "berth", and berth as users have it,
// with the fast path, "berth-fast". Since then "berth" is the product's default.
const firstSchema = 1

// currentName returns the name that a system of the first schema has now.
func currentName(system string) string {
	switch system {
	case "berth":
		return "berth-overlay"
	case "berth-fast":
		return "berth"
	}
	return system
}

// renameSystems gives the systems of a line of the first schema their current names.
// The text of a plan stays as it was written.
func (l *Line) renameSystems() {
	if s := l.Session; s != nil {
		s.Reference, s.name = currentName(s.Reference), currentName
	}
	if l.Trial != nil {
		l.Trial.System = currentName(l.Trial.System)
	}
	if l.Unmeasured != nil {
		l.Unmeasured.System = currentName(l.Unmeasured.System)
	}
}

// Renamed reports whether systems have other names in the session's plan than in its
// records.
func (s *Session) Renamed() bool { return s.name != nil }

// System returns the name in records of a system of the session's plan.
func (s *Session) System(inPlan string) string {
	if s.name == nil {
		return inPlan
	}
	return s.name(inPlan)
}
