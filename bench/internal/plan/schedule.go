package plan

import (
	"math/rand/v2"

	"berth.dev/berth/bench/internal/record"
)

// Schedule is the order of all trials. It depends on the plan alone: in each
// round every case is measured once on every system, in an order of its own that
// the seed decides, so that what changes on the machine over time hits all
// systems alike. Warm-ups are rounds before the first.
func (p *Plan) Schedule() []record.ID {
	random := rand.New(rand.NewPCG(p.Seed, 0))
	var order []record.ID
	rounds := func(phase record.Phase, count func(Case) int) {
		for n, more := 1, true; more; n++ {
			var round []record.ID
			for _, c := range p.Cases {
				if n > count(c) {
					continue
				}
				for _, system := range c.Systems {
					round = append(round, record.ID{Case: c.Name, System: system, Phase: phase, Number: n})
				}
			}
			random.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
			order = append(order, round...)
			more = len(round) > 0
		}
	}
	rounds(record.WarmUp, func(c Case) int { return c.WarmUps })
	warm := len(order)
	rounds(record.Run, func(c Case) int { return c.Repetitions })
	if p.Baseline.Case == "" {
		return order
	}
	middle := warm + (len(order)-warm)/2
	var with []record.ID
	with = append(with, order[:warm]...)
	with = append(with, p.baseline(record.BaselineStart)...)
	with = append(with, order[warm:middle]...)
	with = append(with, p.baseline(record.BaselineMiddle)...)
	with = append(with, order[middle:]...)
	return append(with, p.baseline(record.BaselineEnd)...)
}

func (p *Plan) baseline(phase record.Phase) (trials []record.ID) {
	for n := range p.Baseline.Repetitions {
		trials = append(trials, record.ID{Case: p.Baseline.Case, System: p.Reference, Phase: phase, Number: n + 1})
	}
	return trials
}

// Remaining are the trials of a schedule of which there is no record. One that
// failed has one: that it failed is a result.
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
