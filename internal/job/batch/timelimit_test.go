package batch

import (
	"testing"
	"time"
)

func TestTimeLimit(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1": time.Minute, "90": 90 * time.Minute, "1:30": 90 * time.Second, "2:00:00": 2 * time.Hour,
		"1-0": 24 * time.Hour, "1-12:30": 36*time.Hour + 30*time.Minute, "0-0:0:5": 5 * time.Second,
		"0": 0, "": 0, "infinite": 0, "1:2:3:4": 0, "-1": 0, "1-": 0, "99999999999999999999": 0, "4294967295": 0, "1.5": 0,
	} {
		if got, ok := TimeLimit(text); got != want || ok != (want > 0) {
			t.Errorf("%q: %v, %v; want %v", text, got, ok, want)
		}
	}
}
