package loopback

import "berth.dev/berth/programs/kubectl/linux"

func openDiag() (socketDiag, error) { return linux.OpenSocketDiag() }
