package probe

import (
	"fmt"
	"strings"
)

// State is the outcome of one probe.
type State string

const (
	Yes      State = "yes"
	No       State = "no"
	Degraded State = "degraded" // the feature works, but with restrictions
	Unknown  State = "unknown"  // the probe could not find out
)

// Level is the importance of a feature to berth.
type Level string

const (
	Required    Level = "required"    // berth cannot run without the feature
	Recommended Level = "recommended" // berth runs, with a limit that a user can meet
	Optional    Level = "optional"    // a convenience, or a part that few need
)

// Remedy tells the user and the administrator how to get a missing feature, by commands
// where possible.
type Remedy struct {
	User  string `json:"user,omitempty"`
	Admin string `json:"admin,omitempty"`
}

// Result is the result of one probe. The JSON names are stable.
type Result struct {
	// Name identifies the probe: "own-proc".
	Name string `json:"name"`
	// Title names it to a person: "own /proc".
	Title string `json:"title"`
	Level Level  `json:"level"`
	OK    State  `json:"ok"`
	// Found describes what the probe found, for every value of OK.
	Found string `json:"found"`
	// Cost is the effect of the missing feature, and Remedy the cure. Both are
	// empty if OK is Yes.
	Cost   string `json:"cost,omitempty"`
	Remedy Remedy `json:"remedy,omitzero"`
}

// Report is everything that was found on one machine.
type Report struct {
	// Version is the version of this structure; it grows when a field changes
	// its meaning.
	Version int      `json:"version"`
	Host    string   `json:"host"`
	Kernel  string   `json:"kernel"`
	User    string   `json:"user"`
	UID     int      `json:"uid"`
	Results []Result `json:"results"`
	// Runs is true if berth can run here. Verdict is the same in a sentence.
	Runs    bool   `json:"runs"`
	Verdict string `json:"verdict"`
}

// ReportVersion is the Version of reports made by this package.
const ReportVersion = 1

// Conclude sets Runs and Verdict from the results: berth runs unless a
// required thing is missing for certain.
func (r *Report) Conclude() {
	var missing, degraded, without, unknown []string
	for _, result := range r.Results {
		switch {
		case result.OK == Unknown && result.Level == Required:
			unknown = append(unknown, result.Title)
		case result.OK == No && result.Level == Required:
			missing = append(missing, result.Title)
		case result.OK == No && result.Level == Recommended:
			without = append(without, result.Title)
		case result.OK == Degraded && result.Level != Optional:
			degraded = append(degraded, result.Title)
		}
	}
	r.Runs = len(missing) == 0
	if !r.Runs {
		r.Verdict = fmt.Sprintf("berth runs here: no, it lacks: %s", strings.Join(missing, ", "))
		return
	}
	var parts []string
	if len(without) > 0 {
		parts = append(parts, "without: "+strings.Join(without, ", "))
	}
	if len(degraded) > 0 {
		parts = append(parts, "limited: "+strings.Join(degraded, ", "))
	}
	if len(unknown) > 0 {
		parts = append(parts, "not known: "+strings.Join(unknown, ", "))
	}
	if len(parts) == 0 {
		parts = append(parts, "with everything")
	}
	r.Verdict = "berth runs here: yes, " + strings.Join(parts, "; ")
}
