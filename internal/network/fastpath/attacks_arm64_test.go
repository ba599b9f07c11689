package fastpath

import "errors"

// foreignConnect would need a program of 32-bit ARM.
func foreignConnect(int, []byte) error { return errors.ErrUnsupported }
