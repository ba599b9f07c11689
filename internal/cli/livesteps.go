package cli

import (
	"fmt"
	"os"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// liveSteps shows the steps of a cluster's start on a terminal, one line for each: a
// spinner until the step is done, and its time afterwards.
type liveSteps struct {
	*mpb.Progress
	start time.Time
	// bars holds the lines by the names of their steps. pending counts unfinished steps.
	bars    map[string]*mpb.Bar
	pending int
}

func newLiveSteps(to *os.File, start time.Time) *liveSteps {
	l := &liveSteps{
		Progress: mpb.New(mpb.WithOutput(to), mpb.WithWidth(1), mpb.WithRefreshRate(60*time.Millisecond), mpb.WithAutoRefresh()),
		start:    start,
		bars:     map[string]*mpb.Bar{},
	}
	for _, s := range steps {
		l.bars[s.name] = l.New(1, mpb.SpinnerStyle("|", "/", "-", "\\"),
			mpb.BarFillerOnComplete("\x1b[32m+\x1b[0m"),
			mpb.AppendDecorators(
				decor.OnComplete(decor.Name(s.doing), s.done),
				decor.Any(l.time()),
			))
		l.pending++
	}
	return l
}

// time returns a decorator that shows the time since the start of the run. It stops
// when the step is done.
func (l *liveSteps) time() func(decor.Statistics) string {
	var final string
	return func(s decor.Statistics) string {
		switch {
		case final != "":
		case s.Completed:
			final = fmt.Sprintf("  %.2fs", time.Since(l.start).Seconds())
		default:
			return fmt.Sprintf("  %.1fs", time.Since(l.start).Seconds())
		}
		return final
	}
}

// done marks a step and reports whether it was the last one.
func (l *liveSteps) done(name string) bool {
	bar := l.bars[name]
	if bar == nil || bar.Completed() {
		return false
	}
	bar.Increment()
	l.pending--
	return l.pending == 0
}

// omit removes the line of a step.
func (l *liveSteps) omit(name string) {
	if bar := l.bars[name]; bar != nil {
		bar.Abort(true)
		delete(l.bars, name)
		l.pending--
	}
}

// vanish removes all lines.
func (l *liveSteps) vanish() {
	for _, bar := range l.bars {
		bar.Abort(true)
	}
	l.finish()
}

// end leaves the lines as they are and the cursor below them.
func (l *liveSteps) end() {
	for _, bar := range l.bars {
		bar.Abort(false)
	}
	l.finish()
}

// finish returns when the last state is on the terminal, or after writeWait if the
// terminal takes no output.
func (l *liveSteps) finish() {
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		l.Wait()
	}()
	select {
	case <-shown:
	case <-time.After(writeWait):
	}
}
