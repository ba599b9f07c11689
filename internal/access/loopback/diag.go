package loopback

import "berth.dev/berth/internal/base/linux"

func openDiag() (socketDiag, error) { return linux.OpenSocketDiag() }
