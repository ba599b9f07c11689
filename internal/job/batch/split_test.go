package batch

import (
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func own(name string) (takesValue, ok bool) {
	switch name {
	case "f", "file", "image":
		return true, true
	case "print", "fail-fast":
		return false, true
	}
	return false, false
}

func words(line Arguments) []string {
	var all []string
	for _, option := range line.Options {
		all = append(all, option.Words...)
	}
	return all
}

func TestSplit(t *testing.T) {
	for _, test := range []struct{ args, own, sbatch, command string }{
		{"-N3 -t 10 -p short --array=1-4%2 --dependency=afterok:12 -f job.yaml", "-f job.yaml", "-N3 -t 10 -p short --array=1-4%2 --dependency=afterok:12", ""},
		{"--file=a -f- --image x=b.tar --print --nodes 2 --hold", "--file=a -f - --image x=b.tar --print", "--nodes 2 --hold", ""},
		{"-HWf a.yaml -vv -k -koff", "-f a.yaml", "-H -W -v -v -k -koff", ""},
		{"-t -1 --time -1 --nice -f a", "-f a", "-t -1 --time -1 --nice", ""},
		{"-N1 : -N2 --gpus=1 -f a -- ./x -N 1 -- y", "-f a", "-N1 : -N2 --gpus=1", "./x -N 1 -- y"},
		{"--dep afterok:12 --no-req --array 1-2 -f a", "-f a", "--dep afterok:12 --no-req --array 1-2", ""},
		// Of a plugin of the site.
		{"--tunnel 8888:8888 --x11 --licence=a -f a", "-f a", "--tunnel=8888:8888 --x11 --licence=a", ""},
		{"--x11 : --y -Z -f a", "-f a", "--x11 : --y -Z", ""},
		{"-- x", "", "", "x"},
	} {
		line, err := Split(strings.Fields(test.args), own)
		if err != nil {
			t.Errorf("%s: %v", test.args, err)
			continue
		}
		for what, pair := range map[string][2]string{
			"own":     {strings.Join(line.Own, " "), test.own},
			"sbatch":  {strings.Join(words(line), " "), test.sbatch},
			"command": {strings.Join(line.Command, " "), test.command},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s: %s: got %q, want %q", test.args, what, pair[0], pair[1])
			}
		}
	}
}

func TestSplitRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"job.yaml":          "unexpected argument",
		"--hold job.yaml":   "unexpected argument",
		"-N3 -f a job.yaml": "unexpected argument",
		"-H job.yaml":       "unexpected argument",
		"-":                 "unexpected argument",
		"-f":                "-f needs a value",
		"--time":            "--time needs a value",
		"-N":                "-N needs a value",
		"--image":           "--image needs a value",
	} {
		if _, err := Split(strings.Fields(args), own); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

func TestGetAcceptsAllNamesOfOption(t *testing.T) {
	for _, args := range []string{"-a1-2", "-a 1-2", "--array=1-2", "--array 1-2", "--arr=1-2", "-a9 -a1-2", "-Ha1-2"} {
		line, err := Split(strings.Fields(args), own)
		if got, given := line.Get("array"); err != nil || !given || got != "1-2" {
			t.Errorf("%s: got %q, %v, %v", args, got, given, err)
		}
	}
}

func TestEveryOptionIsInOneList(t *testing.T) {
	all := strings.Fields(withoutValue + " " + withOptional + " " + withValue)
	slices.Sort(all)
	if unique := slices.Compact(slices.Clone(all)); len(unique) != len(all) {
		t.Error("an option is listed twice")
	}
	for letter, name := range letters {
		if !slices.Contains(all, name) {
			t.Errorf("-%c means --%s, which is in no list", letter, name)
		}
	}
	for name := range strings.FieldsSeq(ofSubmission) {
		if !slices.Contains(all, name) {
			t.Errorf("--%s is in no list", name)
		}
	}
}

func FuzzSplit(f *testing.F) {
	f.Add("-N3\x00-f\x00a\x00--\x00x")
	f.Fuzz(func(t *testing.T, args string) {
		fuzzbound.Watch(t)
		given := strings.Split(args, "\x00")
		line, err := Split(given, own)
		if err == nil && len(line.Own)+len(words(line))+len(line.Command) == 0 && len(given) > 1 {
			t.Errorf("%q: all words are lost", given)
		}
	})
}
