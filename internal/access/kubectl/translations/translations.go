// Package translations keeps berth-kube from reading kubectl's translations when it
// is not kubectl. Variables of kubectl's packages ask for them when the program
// starts, which takes 11 ms. Nothing else belongs here.
//
// It must be initialized before those packages. Go does so in the order of import
// paths where both could be next (language specification, "Program initialization"),
// and both wait for the same package.
package translations

import (
	"os"
	"path/filepath"

	"k8s.io/kubectl/pkg/util/i18n"
)

// Wanted reports whether this process is kubectl.
var Wanted = func() bool {
	wanted := filepath.Base(os.Args[0]) == "kubectl"
	if !wanted {
		_ = i18n.SetLoadTranslationsFunc(func() error { return nil }) // it fails once they are loaded
	}
	return wanted
}()
