package loopback

import "berth.dev/berth/internal/linux"

func openDiag() (socketDiag, error) { return linux.OpenSocketDiag() }
