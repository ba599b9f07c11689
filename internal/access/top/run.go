package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	_ "berth.dev/berth/internal/access/top/background" // before Bubbletea
)

// share bounds the time spent on listing pods. Between two snapshots there is a pause of
// share times the duration of the last list, because a list of thousands of pods is
// work for the API server and for this process.
const share = 10

// silenceTimeout limits how long a cluster may be silent before the view ends.
// Another control plane may take over from a lost one.
const silenceTimeout = 30 * time.Second

// Once writes one snapshot as text. It reads two, a second apart, to compute
// rates.
func Once(ctx context.Context, api API, view View, w io.Writer) error {
	first, err := readSnapshot(ctx, api, nil, time.Now)
	if err != nil {
		return err
	}
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	second, err := readSnapshot(ctx, api, first, time.Now)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, view.render(second))
	return err
}

// Terminal is Run's terminal.
type Terminal struct {
	In  io.Reader
	Out io.Writer
	// Every is the shortest pause between two snapshots.
	Every time.Duration
	// Lost, where not nil, is closed when the cluster cannot be reached any more.
	Lost <-chan struct{}
}

// errLost is Run's error after Terminal.Lost was closed. The caller knows the reason.
var errLost = errors.New("the cluster cannot be reached any more")

// Run shows a cluster until the user quits, ctx ends, or the cluster is lost. It then
// restores the terminal.
func Run(ctx context.Context, api API, view View, terminal Terminal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	view.Keys = true
	m := &model{ctx: ctx, api: api, view: view, every: terminal.Every, lost: terminal.Lost, answered: time.Now()}
	program := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(terminal.In), tea.WithOutput(terminal.Out),
		tea.WithAltScreen(), tea.WithoutSignalHandler())
	_, err := program.Run()
	switch {
	case m.err != nil:
		return m.err
	case errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// model is the state of the view. Bubbletea calls its methods one at a time.
type model struct {
	ctx      context.Context //nolint:containedctx // of the program's run, whose callbacks take none
	api      API
	view     View
	every    time.Duration
	lost     <-chan struct{}
	last     *snapshot
	answered time.Time
	err      error
}

// Messages about events other than keys.
type (
	readMsg struct {
		snapshot *snapshot
		err      error
	}
	dueMsg  struct{}
	lostMsg struct{}
)

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return tea.Batch(m.read(), m.await()) }

// Update implements tea.Model.
func (m *model) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch message := message.(type) {
	case tea.WindowSizeMsg:
		m.view.Width, m.view.Height = message.Width, message.Height
	case tea.KeyMsg:
		return m, m.press(message.String())
	case readMsg:
		return m, m.take(message)
	case dueMsg:
		return m, m.read()
	case lostMsg:
		m.err = errLost
		return m, tea.Quit
	}
	return m, nil
}

// press acts on a key.
func (m *model) press(key string) tea.Cmd {
	page := max(1, m.view.Height/2)
	switch key {
	case "q", "ctrl+c", "esc":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "c":
		m.view.Order = ByCPU
	case "m":
		m.view.Order = ByMemory
	case "n":
		m.view.Order = ByName
	case "down", "j":
		m.view.Skip++
	case "up", "k":
		m.view.Skip--
	case "pgdown", " ":
		m.view.Skip += page
	case "pgup":
		m.view.Skip -= page
	case "home", "g":
		m.view.Skip = 0
	}
	pods := 0
	if m.last != nil {
		pods = len(m.last.Pods)
	}
	m.view.Skip = max(0, min(m.view.Skip, pods-1))
	return nil
}

// take shows a snapshot, or the error of a failed one.
func (m *model) take(read readMsg) tea.Cmd {
	now := time.Now()
	if read.err == nil {
		m.last, m.answered, m.view.Notice = read.snapshot, now, ""
		return m.due(max(m.every, share*read.snapshot.Took))
	}
	silent := now.Sub(m.answered)
	if m.ctx.Err() != nil || silent > silenceTimeout {
		m.err = read.err
		return tea.Quit
	}
	m.view.Notice = fmt.Sprintf("no answer for %s: %v", silent.Round(time.Second), read.err)
	return m.due(m.every)
}

// View implements tea.Model.
func (m *model) View() string {
	if m.last == nil {
		return "asking the cluster " + m.view.Notice
	}
	return m.view.render(m.last)
}

func (m *model) read() tea.Cmd {
	earlier := m.last
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, silenceTimeout/3)
		defer cancel()
		s, err := readSnapshot(ctx, m.api, earlier, time.Now)
		return readMsg{s, err}
	}
}

func (m *model) due(in time.Duration) tea.Cmd {
	return tea.Tick(in, func(time.Time) tea.Msg { return dueMsg{} })
}

func (m *model) await() tea.Cmd {
	return func() tea.Msg {
		select {
		case <-m.lost: // never, where there is no tunnel
			return lostMsg{}
		case <-m.ctx.Done():
			return nil
		}
	}
}
