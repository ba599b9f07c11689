package slurm

import (
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func TestExpandHosts(t *testing.T) {
	for list, want := range map[string]string{
		"":                          "",
		"n1":                        "n1",
		"n1,n2":                     "n1 n2",
		"n[1-3,7],gpu-[01-03]":      "n1 n2 n3 n7 gpu-01 gpu-02 gpu-03",
		"n[098-101]":                "n098 n099 n100 n101",
		"n[8-11]":                   "n8 n9 n10 n11",
		"r[1-2]n[0-1]":              "r1n0 r1n1 r2n0 r2n1",
		"nid[000012,000044]":        "nid000012 nid000044",
		"n[1]-ib.example.org":       "n1-ib.example.org",
		"login, n1 ,":               "login n1",
		"[1-2]":                     "1 2",
		"n[1-2]x[3],m":              "n1x3 n2x3 m",
		"cn-[0001-0002]-[a]":        "error",
		"n[1-":                      "error",
		"n1]":                       "error",
		"n[]":                       "error",
		"n[3-1]":                    "error",
		"n[1-2-3]":                  "error",
		"n[-1]":                     "error",
		"n[+1]":                     "error",
		"n[0x1]":                    "error",
		"n[[1]]":                    "error",
		"n 1":                       "error",
		"n[1-99999999]":             "error",
		"a[1-1000]b[1-1000]":        "error",
		"n[0-18446744073709551615]": "error",
	} {
		got, err := ExpandHosts(list)
		if want == "error" {
			if err == nil {
				t.Errorf("%q: got %d hosts, want an error", list, len(got))
			}
			continue
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: got %v, %v", list, got, err)
		}
	}
}

func FuzzExpandHosts(f *testing.F) {
	for _, list := range []string{"n[1-3,7],gpu-[01-12]", "r[1-2]n[0-3]", "n[", "a,b,,c", "n[1-65536]"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		fuzzbound.Watch(t)
		hosts, err := ExpandHosts(list)
		if err != nil {
			return
		}
		if len(hosts) > maxHosts {
			t.Fatalf("%d hosts", len(hosts))
		}
		// The result is plain: expanding it again changes nothing.
		again, err := ExpandHosts(strings.Join(hosts, ","))
		if err != nil || !slices.Equal(again, hosts) {
			t.Fatalf("%q: %v, then %v (%v)", list, hosts, again, err)
		}
	})
}
