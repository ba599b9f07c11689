package plan

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"berth.dev/berth/bench/internal/record"
)

// Schedule returns the order of all trials, which depends only on the plan. In each round
// every case is measured once on each of its systems, in an order that the seed decides. So
// changes of the machine over time affect all systems equally. Cases with fewer
// repetitions are spread over the rounds of the whole run. Warm-ups are rounds before the
// first. With links, all trials of one link come before the trials of the next.
func (p *Plan) Schedule() (order []record.ID) {
	for _, link := range p.links() {
		order = append(order, p.schedule(link)...)
	}
	return order
}

func (p *Plan) schedule(link string) []record.ID {
	random := rand.New(rand.NewPCG(p.Seed, 0))
	var order []record.ID
	rounds := func(phase record.Phase, last int, in func(c Case, n int) bool) {
		for n := 1; n <= last; n++ {
			var round []record.ID
			for _, c := range p.Cases {
				if !in(c, n) || c.Link != link {
					continue
				}
				for _, system := range c.Systems {
					round = append(round, record.ID{Case: c.Name, System: system, Phase: phase, Number: n})
				}
			}
			random.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
			if p.Together {
				bySystem(round)
			}
			order = append(order, round...)
		}
	}
	most := 0
	for _, c := range p.Cases {
		most = max(most, c.WarmUps)
	}
	rounds(record.WarmUp, most, func(c Case, n int) bool { return n <= c.WarmUps })
	warm := len(order)
	rounds(record.Run, p.rounds, func(c Case, n int) bool { return spread(n, c.Repetitions, p.rounds) })
	if _, ok := p.baselineCase(link); !ok {
		return order
	}
	middle := warm + (len(order)-warm)/2
	for p.Together && middle < len(order) && middle > warm && order[middle].System == order[middle-1].System {
		middle++ // keeps adjacent trials together
	}
	var with []record.ID
	with = append(with, order[:warm]...)
	with = append(with, p.baseline(record.BaselineStart, link)...)
	with = append(with, order[warm:middle]...)
	with = append(with, p.baseline(record.BaselineMiddle, link)...)
	with = append(with, order[middle:]...)
	return append(with, p.baseline(record.BaselineEnd, link)...)
}

// spread reports whether a case is measured in the n-th round, counting from 1. It divides
// the rounds into equal parts, one for each repetition, and selects the middle of each.
func spread(n, repetitions, rounds int) bool {
	before := func(n int) int { return (2*n*repetitions + rounds) / (2 * rounds) }
	return before(n) > before(n-1)
}

// bySystem makes the trials of each system adjacent. The order of the systems, and of
// the trials of a system, stays random.
func bySystem(round []record.ID) {
	first := map[string]int{}
	for i, id := range round {
		if _, seen := first[id.System]; !seen {
			first[id.System] = i
		}
	}
	slices.SortStableFunc(round, func(a, b record.ID) int { return cmp.Compare(first[a.System], first[b.System]) })
}

// baselineCase returns the case of the baseline with a link, and reports whether there is
// one.
func (p *Plan) baselineCase(link string) (Case, bool) {
	if link == "" {
		return p.Case(p.Baseline.Case)
	}
	i := slices.IndexFunc(p.Cases, func(c Case) bool { return c.Base == p.Baseline.Case && c.Link == link })
	if i < 0 {
		return Case{}, false
	}
	return p.Cases[i], true
}

// baseline returns the trials of the baseline in one phase.
func (p *Plan) baseline(phase record.Phase, link string) (trials []record.ID) {
	c, _ := p.baselineCase(link)
	for n := range p.Baseline.Repetitions {
		trials = append(trials, record.ID{Case: c.Name, System: p.Reference, Phase: phase, Number: n + 1})
	}
	return trials
}

// Remaining returns the trials of a schedule that have no record, in order. A failed trial
// has a record, because the failure is a result.
func Remaining(schedule []record.ID, lines []record.Line) (left []record.ID) {
	made := map[record.ID]bool{}
	for _, line := range lines {
		if line.Trial != nil {
			made[line.Trial.ID()] = true
		}
	}
	for _, id := range schedule {
		if !made[id] {
			left = append(left, id)
		}
	}
	return left
}
