// Package archive handles the images of a run that are files: tar archives, SIF
// files, and folders with an unpacked image or an OCI layout. It checks them,
// gives the images of manifests valid names, and sends the files from the head to
// nodes that do not see them. The import into containerd does not belong here.
//
// Read archive.go and names.go for what an image file is, server.go and relay.go
// for how it is sent, and places.go for where a copy goes.
package archive
