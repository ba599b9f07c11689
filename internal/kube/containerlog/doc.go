// Package containerlog serves the output of containers from the log files that
// the container runtime writes on a node. A Watcher opens every log as soon as
// it appears, so that neither rotation nor the deletion of a pod loses what a
// client has not read yet. It knows no Kubernetes API, and does not print.
package containerlog
