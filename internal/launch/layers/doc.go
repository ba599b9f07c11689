// Package layers is the role that serves the layers of images to the kernel,
// through FUSE, as the supervisor sees it. It starts the role and holds the
// descriptors of the role's mounts, which outlive it. The role itself is the
// program berth-layers.
package layers
