// Package imagestore imports image archives into a running containerd that shares
// this process's file system. It reads archives. It contacts no registry and does
// not choose what to import.
//
// Read archive.go first, then importer.go and shared.go: the two ways into containerd.
// layout.go, plain.go, sif.go and root.go read the forms of archives, bounded.go limits
// what they may hold, and images.go finds the images. direct.go writes blobs into
// containerd's store without its daemon. mirrors.go makes containerd ask the mirror of
// archives, and visible.go waits until the kubelet can see an image.
package imagestore
