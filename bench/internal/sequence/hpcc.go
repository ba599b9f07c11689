package sequence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/bench/internal/record"
)

// hpccInput is hpcc's input, which hpcc parses by line numbers (Debian's example
// is /usr/share/doc/hpcc/examples/_hpccinf.txt). HPL's lines come first; from
// the 33rd on, PTRANS could have further problems, but there are none here. The
// variables are the problem's size and a grid of 1 by the number of processes.
const hpccInput = `HPLinpack benchmark input file
berth bench
HPL.out output file
6 device out
1 # of problems sizes (N)
%d Ns
1 # of NBs
80 NBs
0 PMAP process mapping
1 # of process grids (P x Q)
1 Ps
%d Qs
16.0 threshold
1 # of panel fact
2 PFACTs
1 # of recursive stopping criterium
4 NBMINs
1 # of panels in recursion
2 NDIVs
1 # of recursive panel fact.
1 RFACTs
1 # of broadcast
1 BCASTs
1 # of lookahead depth
1 DEPTHs
2 SWAP
64 swapping threshold
0 L1 in form
0 U in form
1 Equilibration
8 memory alignment in double
##### line 32 is ignored
0 Number of additional problem sizes for PTRANS
0 values of N
0 number of additional blocking sizes for PTRANS
0 values of NB
`

// hpccShell runs hpcc in a separate folder and prints its summary.
const hpccShell = `set -e; dir=$1; input=$2; shift 2; cd "$dir"; printf '%s' "$input" >hpccinf.txt; rm -f hpccoutf.txt; "$@" >&2; cat hpccoutf.txt`

// hpccFigures lists the figures to take from the summary: HPL, and substitutes
// for HPCG, which Debian lacks: the speed of memory, and of an exchange between
// all processes. Some are meaningless for a small matrix. readHPCC omits these by
// the size, and so for all trials of a case. To keep only the trials that were
// slow enough to measure would bias the figures.
var hpccFigures = []struct{ key, name, unit string }{ //nolint:gochecknoglobals // a constant
	{"HPL_Tflops", "HPL", "Gflop/s"},
	{triad, "STREAM triad of each process", "GB/s"},
	{ptrans, "PTRANS", "GB/s"},
	{"MPIFFT_Gflops", "MPIFFT", "Gflop/s"},
}

const (
	triad, ptrans = "StarSTREAM_Triad", "PTRANS_GBs"
	// timed is the smallest matrix size whose PTRANS takes longer than the resolution of
	// hpcc's clock.
	timed = 4000
	// fits is the minimum size of a STREAM vector in multiples of the last-level cache,
	// by STREAM's own rule. A smaller vector measures the cache.
	fits = 4
	// otherCache is the assumed cache size, in bytes, of a machine that does not
	// report it.
	otherCache = 64 << 20
)

// means reports whether a figure means something for a matrix of size rows and columns, and
// a cache of that many bytes. hpcc uses a process's part of the matrix's memory for
// STREAM's three vectors.
func (s Spec) means(key string, size, cache int) bool {
	switch key {
	case triad:
		const vectors, double = 3, 8
		return size*size/s.Nodes/vectors*double >= fits*cache
	case ptrans:
		return size >= timed
	}
	return true
}

// lastCache returns the size in bytes of the largest processor cache of this machine, or
// otherCache if the kernel reports none.
func lastCache() int {
	found := 0
	sizes, err := filepath.Glob("/sys/devices/system/cpu/cpu0/cache/index*/size")
	if err != nil {
		return otherCache
	}
	for _, path := range sizes {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if kilobytes, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(string(text)), "K")); err == nil {
			found = max(found, kilobytes<<10)
		}
	}
	return cmp.Or(found, otherCache)
}

func (s Spec) hpccInput() (string, error) {
	size, err := strconv.Atoi(s.Parameters["size"])
	return fmt.Sprintf(hpccInput, size, s.Nodes), err
}

// hpccJob runs hpcc in a plain job, in a folder that all hosts see: the current one.
func hpccJob(ctx context.Context, s Spec) (Result, error) {
	launch, err := s.launch()
	if err != nil {
		return Result{}, err
	}
	input, err := s.hpccInput()
	if err != nil {
		return Result{}, err
	}
	here, err := os.Getwd()
	if err != nil {
		return Result{}, err
	}
	dir, err := os.MkdirTemp(here, "berth-bench-hpcc-")
	if err != nil {
		return Result{}, fmt.Errorf("make a folder that all hosts see: %w", err)
	}
	defer os.RemoveAll(dir)
	out, err := run(ctx, "", slices.Concat([]string{"sh", "-c", hpccShell, "sh", filepath.Clean(dir), input}, launch, []string{"hpcc"})...)
	if err != nil {
		return Result{}, err
	}
	r, err := s.readHPCC(out, lastCache())
	if err == nil {
		r.MPI = s.jobMPI(ctx)
	}
	return r, err
}

// hpccPods runs hpcc between pods, one on each node.
func hpccPods(ctx context.Context, s Spec) (Result, error) {
	input, err := s.hpccInput()
	if err != nil {
		return Result{}, err
	}
	first, err := s.mpiWorkers(ctx)
	if err != nil {
		return Result{}, err
	}
	// Only the first process reads and writes files. It is in the first worker.
	in := func(args ...string) []string {
		return append([]string{"exec", workers + "-0", "--", "sh", "-c"}, args...)
	}
	if _, err := s.kubectl(ctx, "", in(`printf '%s' "$1" >/tmp/hpccinf.txt`, "sh", input)...); err != nil {
		return Result{}, err
	}
	r, err := s.counted(ctx, func() (Result, error) {
		if _, err := s.kubectl(ctx, "", slices.Concat([]string{"exec", first, "--"}, s.mpirun(), []string{"--wdir", "/tmp", "hpcc"})...); err != nil {
			return Result{}, err
		}
		out, err := s.kubectl(ctx, "", in("cat /tmp/hpccoutf.txt")...)
		if err != nil {
			return Result{}, err
		}
		return s.readHPCC(out, lastCache())
	})
	if err == nil {
		r.MPI = s.podMPI(ctx, first)
	}
	return r, err
}

// readHPCC reads the figures from hpcc's summary. It returns an error if hpcc did not find
// its results right, or if a figure is missing.
func (s Spec) readHPCC(text string, cache int) (r Result, err error) {
	size, err := strconv.Atoi(s.Parameters["size"])
	if err != nil {
		return r, err
	}
	if !strings.Contains(text, "Success=1") {
		return r, fmt.Errorf("hpcc does not say that its results are right: %.200q", text)
	}
	for _, f := range hpccFigures {
		values, err := floats(regexp.MustCompile(`(?m)^`+f.key+`=([0-9.e+-]+)$`), text)
		if err != nil || len(values) != 1 {
			return r, errors.Join(fmt.Errorf("hpcc's summary has no figure %s", f.key), err)
		}
		if !s.means(f.key, size, cache) || values[0] == 0 && f.key != "HPL_Tflops" {
			continue // 0: it took less than the resolution of hpcc's clock
		}
		if strings.HasSuffix(f.key, "Tflops") {
			values[0] *= 1000
		}
		r.Values = append(r.Values, record.Value{Name: f.name, Unit: f.unit, Better: "higher", Value: values[0]})
	}
	return r, nil
}
