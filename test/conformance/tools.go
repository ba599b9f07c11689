// Package conformance pins the programs of the suite in a separate module: berth
// itself depends on none of it. Nothing here is compiled into berth.
package conformance

import _ "k8s.io/kubernetes/test/e2e" // the suite; its main function is a test, built with "go test -c"
