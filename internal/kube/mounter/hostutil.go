package mounter

import "k8s.io/kubernetes/pkg/volume/util/hostutil"

// HostUtil is upstream's HostUtils, except that it executes no mount(8).
type HostUtil struct{ hostutil.HostUtils }

// NewHostUtil returns a HostUtil.
func NewHostUtil() *HostUtil { return &HostUtil{hostutil.NewHostUtil()} }

// MakeRShared makes path a shared mount point.
func (*HostUtil) MakeRShared(path string) error { return makeRShared(path) }
