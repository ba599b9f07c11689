package testutil

import "berth.dev/berth/internal/base/linux"

// OnNewThread runs f on a thread that ends with it, and does not wait for it.
func OnNewThread(f func()) { go linux.OnNewThread(f) }
