package script

import (
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

// The expected words were observed with sbatch 22.05.8: squeue showed the names.
func TestDirectivesAreReadAsSbatchDoes(t *testing.T) {
	for _, c := range []struct {
		lines string
		want  []string
	}{
		{"#SBATCH --job-name=a # comment", []string{"--job-name=a"}},
		{"#SBATCH --job-name=a#b --comment=x", []string{"--job-name=a"}},
		{"#SBATCH #--job-name=a", nil},
		{`#SBATCH --job-name='a b' --comment="it's"`, []string{"--job-name=a b", "--comment=it's"}},
		{`#SBATCH --job-name='a\ b\\c'`, []string{`--job-name=a b\c`}},
		{`#SBATCH --job-name=a\ b`, []string{"--job-name=a", "b"}},
		{`#SBATCH --job-name=a\b\\c`, []string{`--job-name=ab\c`}},
		{`#SBATCH --job-name="a#b" --comment='x#y'`, []string{"--job-name=a#b", "--comment=x#y"}},
		{`#SBATCH --job-name=\"a`, []string{`--job-name="a`}},
		{`#SBATCH --job-name=a\`, []string{"--job-name=a"}},
		{`#SBATCH --job-name="a'b\"c"`, []string{`--job-name=a'b"c`}},
		{`#SBATCH --job-name "" x`, []string{"--job-name"}},
		{"#SBATCH --job-name\n#SBATCH joined", []string{"--job-name", "joined"}},
		{"#SBATCH--job-name=x", []string{"--job-name=x"}},
		{" #SBATCH --job-name=x\n#sbatch --job-name=x\n##SBATCH --job-name=x", nil},
		{"# comment\n\n#SBATCH -J x -N2 -t 10", []string{"-J", "x", "-N2", "-t", "10"}},
		{"true\n#SBATCH -J x", nil},
		{"#SBATCH\t-J\ttab\t", []string{"-J", "tab"}},
		{"#PBS -N x\n#BSUB -J x", nil},
		{"#SBATCH -J one\n#SBATCH HetJob -N 1\n#SBATCH -J two", []string{"-J", "one", ":", "-J", "two"}},
		{"#SBATCH -Jx:y", []string{"-Jx:y"}},
		{"#SBATCH --job-name=α\r", []string{"--job-name=α"}},
	} {
		got, err := directives([]byte("#!/bin/sh\n" + c.lines + "\n"))
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, %v; want %q", c.lines, got, err, c.want)
		}
	}
	for _, lines := range []string{`#SBATCH -J "open`, "#SBATCH -J x : -J y"} {
		if got, err := directives([]byte(lines)); err == nil {
			t.Errorf("%q: %q", lines, got)
		}
	}
}

func FuzzBuild(f *testing.F) {
	f.Add("#!/bin/sh\n#SBATCH -J 'a b' --time=10 # x\n#SBATCH hetjob\n#SBATCH -o x/%j\ntrue\n")
	f.Fuzz(func(t *testing.T, text string) {
		fuzzbound.Watch(t)
		job, err := Build(Description{UID: "u", Object: "o", Script: []byte(text), State: "/nowhere", Roots: []string{"/nowhere"}})
		if err != nil {
			return
		}
		for _, word := range job.Options {
			name, _, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
			switch {
			case word == ":" || slices.Contains([]string{"ignore-pbs", "job-name", "chdir", "output", "error", "input", "nodelist", "exclude", "export"}, name):
			case !strings.HasPrefix(word, "--") || !strings.Contains(allowed, " "+name+" "):
				t.Errorf("sbatch receives %q", word)
			}
		}
	})
}
