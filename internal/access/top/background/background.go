// Package background keeps Bubbletea from asking the terminal for the colour of
// its background. Version 1 does so when a program starts that has it in it,
// whatever its command, waits up to five seconds for an answer, and eats what was
// typed meanwhile. Nothing else belongs here.
//
// It must be initialised before Bubbletea. Go does so in the order of import
// paths where both could be next (language specification, "Program
// initialization"), and both wait for the same package.
package background

import "github.com/charmbracelet/lipgloss"

// Known is true: no library has to ask. The view is drawn in colours that are
// legible on both.
var Known = func() bool {
	lipgloss.SetHasDarkBackground(true)
	return lipgloss.HasDarkBackground()
}()
