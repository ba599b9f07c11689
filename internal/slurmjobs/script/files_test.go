package script

import (
	"os/user"
	"strings"
	"testing"
)

func TestFiles(t *testing.T) {
	current, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		lines, output, error string
		want                 [3]string // the working directory, the output, the errors
	}{
		{"", "", "", [3]string{"/home/u", "/home/u/slurm-17.out", "/home/u/slurm-17.out"}},
		{"--chdir=work --output=a.out", "", "", [3]string{"/home/u/work", "/home/u/work/a.out", "/home/u/work/a.out"}},
		{"--output=/x/%x_%A-%5j-%%-%u --job-name=n", "", "", [3]string{"/home/u", "/x/n_17-00017-%-" + current.Username, "/x/n_17-00017-%-" + current.Username}},
		{"--output=a --error=b", "c", "/dev/null", [3]string{"/home/u", "/home/u/c", ""}},
		{`--output=a\\%j`, "", "", [3]string{"/home/u", "/home/u/a%j", "/home/u/a%j"}},
		{"--output=a\n#SBATCH hetjob\n#SBATCH --output=b", "", "", [3]string{"/home/u", "/home/u/a", "/home/u/a"}},
		{"--chdir=a\n#SBATCH hetjob\n#SBATCH --chdir=b", "", "", [3]string{"/home/u/b", "/home/u/b/slurm-17.out", "/home/u/b/slurm-17.out"}},
	} {
		d := Description{Object: "lab/cow", Roots: []string{"/home/u"}, Script: []byte("#!/bin/sh\n#SBATCH " + test.lines + "\n"), Output: test.output, Error: test.error}
		dir, output, errors, err := d.Files("17")
		if got := [3]string{dir, output, errors}; err != nil || got != test.want {
			t.Errorf("%q: got %q, %v", test.lines, got, err)
		}
	}
	for lines, want := range map[string]string{
		"--output=%N.out": "has the placeholder %N, which is only known to Slurm: use %j, %x or %u", "--array=1-3": "the elements of an array job write to different files",
		"--chdir=/etc": "--chdir: /etc is outside",
	} {
		d := Description{Roots: []string{"/home/u"}, Script: []byte("#!/bin/sh\n#SBATCH " + lines + "\n")}
		if _, _, _, err := d.Files("17"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v", lines, err)
		}
	}
}
