// Package control is the control role: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler in one process, tuned so that a
// cluster is usable about half a second after exec. It also creates the objects
// that every berth cluster has from the start.
//
// It uses upstream's components unchanged and replaces only the code that
// assembles them; the top of each file gives the reason for its change. It does
// not make keys, choose addresses or bind ports. The plan brings these, as files
// under its paths and as listeners.
//
// The components keep much of their state in package variables (metrics, feature
// gates, configz), so a process can run the role only once.
//
// Read command.go and control.go first, then store.go and seed.go for the data,
// apiserver.go and gate.go for the API server, and controllers.go and elected.go
// for the controllers. The other files each hold one change or addition.
package control
