package report

import (
	"math"
	"slices"

	"github.com/aclements/go-moremath/stats"
	"golang.org/x/perf/benchmath"
)

// confidence is the confidence level of all intervals.
const confidence = 0.95

// Summary summarises the values of one figure on one system.
type Summary struct {
	Values             []float64 // ascending
	Median, Mean, SD   float64
	Low, High          float64 // the median's interval; infinite if there are too few values
	Smallest, Greatest float64
}

func summarise(values []float64) Summary {
	sorted := slices.Sorted(slices.Values(values))
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(sorted), &benchmath.DefaultThresholds), confidence)
	sample := stats.Sample{Xs: sorted, Sorted: true}
	sd := 0.0
	if len(sorted) > 1 {
		sd = sample.StdDev()
	}
	return Summary{
		Values: sorted, Median: s.Center, Low: s.Lo, High: s.Hi, Mean: sample.Mean(), SD: sd,
		Smallest: sorted[0], Greatest: sorted[len(sorted)-1],
	}
}

// HasInterval reports whether there are enough values for an interval.
func (s Summary) HasInterval() bool { return !math.IsInf(s.Low, 0) && !math.IsInf(s.High, 0) }

// Ratio is the ratio of the values of one sample to the values of another.
type Ratio struct {
	Value, Low, High float64
	// P is the p-value of the Mann-Whitney U test: the smaller, the less likely
	// it is that the two differ only by chance.
	P float64
}

// HasInterval reports whether there are enough values for an interval.
func (r Ratio) HasInterval() bool { return r.Low > 0 && !math.IsInf(r.High, 0) }

// Differs reports whether the interval excludes 1.
func (r Ratio) Differs() bool { return r.HasInterval() && (r.Low > 1 || r.High < 1) }

// ratio estimates the ratio of b to a by the Hodges-Lehmann estimate of the shift
// between the logarithms, the median of all quotients. Its interval comes from
// the distribution of Mann and Whitney's U, and so assumes no distribution of the
// values (Hollander, Wolfe: Nonparametric Statistical Methods, 4.2-4.3).
func ratio(a, b []float64) (Ratio, bool) {
	if len(a) == 0 || len(b) == 0 {
		return Ratio{}, false
	}
	var quotients []float64
	for _, x := range a {
		for _, y := range b {
			if x <= 0 || y <= 0 {
				return Ratio{}, false
			}
			quotients = append(quotients, y/x)
		}
	}
	slices.Sort(quotients)
	n := len(quotients)
	r := Ratio{Value: math.Sqrt(quotients[(n-1)/2] * quotients[n/2]), Low: 0, High: math.Inf(1), P: 1}
	if outside := below(len(a), len(b)); outside > 0 {
		r.Low, r.High = quotients[outside-1], quotients[n-outside]
	}
	if test, err := stats.MannWhitneyUTest(a, b, stats.LocationDiffers); err == nil {
		r.P = test.P
	}
	return r, true
}

// exactLimit is the largest sample whose distribution of U is counted. For larger
// samples that takes long, and the normal approximation is used.
const exactLimit = 50

// below returns how many sorted quotients, counted from either end, bound the
// interval; 0 if there are too few values for one.
func below(n1, n2 int) int {
	tail := (1 - confidence) / 2
	if n1 > exactLimit || n2 > exactLimit {
		a, b := float64(n1), float64(n2)
		return int(a*b/2 + stats.StdNormal.InvCDF(tail)*math.Sqrt(a*b*(a+b+1)/12))
	}
	u := stats.UDist{N1: n1, N2: n2}
	k := 0
	for u.CDF(float64(k)) <= tail {
		k++
	}
	return k
}
