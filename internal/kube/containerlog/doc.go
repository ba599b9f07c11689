// Package containerlog serves the output of containers from the log files that
// the container runtime writes on a node. A Watcher opens every log as soon as
// it appears, so that neither rotation nor the deletion of a pod loses what a
// client has not read yet. The package does not call the Kubernetes API, and does not
// print.
//
// Read watcher.go first, then container.go, segment.go and compressed.go, which keep the
// log files of a container. record.go parses them, reader.go sends them to a client in the
// frames of frame.go, and server.go answers requests.
package containerlog
