package record

// firstSchema is the first version of records. There, "berth" means berth with --fast-path
// off, and "berth-fast" means berth with the fast path. In later versions, "berth" means
// berth with its default options.
const firstSchema = 1

// currentName returns the present name of a system in a record of the first schema.
func currentName(system string) string {
	switch system {
	case "berth":
		return "berth-overlay"
	case "berth-fast":
		return "berth"
	}
	return system
}

// renameSystems replaces the names of systems in a line of the first schema by their
// present names. It does not change the text of the plan.
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

// Renamed reports whether the names of systems in the session's plan differ from the names
// in its records.
func (s *Session) Renamed() bool { return s.name != nil }

// System returns the name that records use for a system of the session's plan.
func (s *Session) System(inPlan string) string {
	if s.name == nil {
		return inPlan
	}
	return s.name(inPlan)
}
