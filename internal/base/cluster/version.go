package cluster

import "runtime/debug"

// version is set by the linker for a release.
var version string

// Version returns the version of berth: its release, or the revision that it was
// built from.
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
