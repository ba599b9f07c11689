package linux

import (
	"bufio"
	"strings"
	"testing"
)

const someMaps = `00400000-00600000 r-xp 00000000 fe:00 11 /usr/bin/prog
Rss:                1024 kB
Anonymous:             0 kB
00600000-00700000 r--p 00200000 fe:00 11 /usr/bin/prog
Rss:                 512 kB
Anonymous:             4 kB
00700000-00710000 rw-p 00300000 fe:00 11 /usr/bin/prog
Rss:                  64 kB
Anonymous:             0 kB
00800000-00900000 r-xp 00000000 fe:00 12 /usr/bin/other
Rss:                 100 kB
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 00:00 0
Rss:                   4 kB
Anonymous:             0 kB
`

func TestOnlyCleanPagesOfTheProgramAreForgotten(t *testing.T) {
	found := clean(bufio.NewScanner(strings.NewReader(someMaps)), "/usr/bin/prog")
	if len(found) != 1 || found[0] != (mappedRange{0x400000, 0x600000, 1 << 20}) {
		t.Errorf("%+v", found)
	}
}

func TestProgramContinuesAfterPagesDropped(t *testing.T) {
	bytes, err := ForgetProgram()
	if err != nil || bytes == 0 {
		t.Errorf("%d bytes, %v", bytes, err)
	}
	if again, err := ForgetProgram(); err != nil || again >= bytes {
		t.Errorf("%d bytes the second time, %d before; %v", again, bytes, err)
	}
}
