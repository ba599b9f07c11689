// Package linux wraps the kernel interfaces that berth uses: typed calls whose
// errors say what was attempted on what. It decides nothing, and imports
// nothing of berth.
package linux
