package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"berth.dev/berth/internal/job/slurm"
)

// Order is the sort key of pods.
type Order string

// The orders of pods: the greatest use first, or by name.
const (
	ByCPU    Order = "cpu"
	ByMemory Order = "memory"
	ByName   Order = "name"
)

// View configures how a snapshot is shown.
type View struct {
	// Title is the name of the cluster.
	Title string
	// Width and Height are the terminal's; 0 for no limit.
	Width, Height int
	Colour        bool
	Order         Order
	// Namespace is the namespace whose pods are shown; empty for all.
	Namespace string
	// Skip is the number of pods scrolled away.
	Skip int
	// Notice replaces the keys in the last line.
	Notice string
	// Keys shows the keys in the last line.
	Keys bool
}

// A terminal smaller than this shows that it is too small.
const (
	leastWidth  = 30
	leastHeight = 6
	maxEvents   = 5
)

// style is the parameter of the terminal's escape sequence for a style of text.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	yellow style = "33"
)

// render returns the text of a snapshot: lines that fit into the view. The last one
// has no line feed.
func (v View) render(s *snapshot) string {
	if v.Width > 0 && v.Width < leastWidth || v.Height > 0 && v.Height < leastHeight {
		return cut("the terminal is too small", v.Width)
	}
	head := []string{v.headline(s)}
	nodes := v.nodes(s)
	events := v.events(s)
	var foot []string
	switch {
	case v.Notice != "":
		foot = []string{v.paint(yellow, cut(clean(v.Notice), v.Width))}
	case v.Keys:
		foot = []string{v.paint(dim, cut("q quit  c cpu  m memory  n name  up/down scroll", v.Width))}
	}
	pods := v.pods(s)
	if v.Height > 0 {
		// At most a third for nodes and a quarter for events, the rest for pods.
		height := v.Height - len(head) - len(foot)
		nodes = v.shorten(nodes, max(2, height/3))
		events = v.shorten(events, max(0, height/4))
		podHeight := height - len(nodes) - len(events)
		pods = v.window(pods, podHeight)
		for len(pods) < podHeight {
			pods = append(pods, "")
		}
	}
	return strings.Join(slices.Concat(head, nodes, pods, events, foot), "\n")
}

func (v View) headline(s *snapshot) string {
	ready, running, waiting, failed := 0, 0, 0, 0
	for _, n := range s.Nodes {
		if n.Ready {
			ready++
		}
	}
	for _, p := range s.Pods {
		switch p.Status {
		case "Running":
			running++
		case "Succeeded", "Completed":
		case "Failed", "Error", "OOMKilled", "Evicted":
			failed++
		default:
			waiting++
		}
	}
	parts := []string{v.Title, fmt.Sprintf("nodes %d/%d", ready, len(s.Nodes)), fmt.Sprintf("%d running", running)}
	if waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d not yet", waiting))
	}
	if failed > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", failed))
	}
	if s.Left >= 0 {
		parts = append(parts, slurm.FormatSpan(s.Left)+" left")
	}
	parts = append(parts, s.At.Format("15:04:05"))
	return v.paint(bold, cut(strings.Join(parts, "  "), v.Width))
}

func (v View) nodes(s *snapshot) []string {
	t := v.table(
		column{"NODE", left, 0}, column{"PODS", right, 4}, column{"CPU", right, 0}, column{"", left, 8},
		column{"MEMORY", right, 1}, column{"", left, 9},
		column{"MESH IN", right, 6}, column{"MESH OUT", right, 6}, column{"DROPPED", right, 10},
		column{"OUTSIDE IN", right, 7}, column{"OUTSIDE OUT", right, 7},
	)
	for _, n := range s.Nodes {
		look := plain
		if !n.Ready {
			look = red
		}
		dropped := fmt.Sprint(n.Dropped)
		name := n.Name
		if !n.Ready {
			name += " (not ready)"
		}
		t.add(look, name, fmt.Sprint(n.Pods),
			cores(n.CPU.Used)+"/"+cores(n.CPU.Of), bar(n.CPU), amount(n.Memory.Used)+"/"+amount(n.Memory.Of), bar(n.Memory),
			speed(n.Between.InRate), speed(n.Between.OutRate), dropped, speed(n.Outside.InRate), speed(n.Outside.OutRate))
	}
	return t.lines(v)
}

func (v View) pods(s *snapshot) []string {
	pods := slices.DeleteFunc(slices.Clone(s.Pods), func(p pod) bool { return v.Namespace != "" && p.Namespace != v.Namespace })
	slices.SortStableFunc(pods, func(a, b pod) int {
		byName := cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		switch v.Order {
		case ByCPU:
			return cmp.Or(cmp.Compare(b.CPU, a.CPU), byName)
		case ByMemory:
			return cmp.Or(cmp.Compare(b.Memory, a.Memory), byName)
		}
		return byName
	})
	t := v.table(
		column{"NAMESPACE", left, 5}, column{"POD", left, 0}, column{"STATUS", left, 1}, column{"READY", right, 6},
		column{"CPU", right, 0}, column{"MEMORY", right, 2}, column{"RESTARTS", right, 8}, column{"AGE", right, 7}, column{"NODE", left, 4},
	)
	for _, p := range pods {
		look := plain
		switch p.Status {
		case "Running":
			if p.Ready < p.Containers {
				look = yellow
			}
		case "Succeeded", "Completed":
			look = dim
		case "Pending", "ContainerCreating", "PodInitializing", "Terminating":
			look = yellow
		default:
			look = red
		}
		age := "-"
		if !p.Started.IsZero() {
			age = slurm.FormatSpan(s.At.Sub(p.Started))
		}
		t.add(look, p.Namespace, p.Name, p.Status, fmt.Sprintf("%d/%d", p.Ready, p.Containers),
			cores(p.CPU), amount(p.Memory), fmt.Sprint(p.Restarts), age, p.Node)
	}
	return append([]string{""}, t.lines(v)...)
}

// events returns lines for the images in transfer and the last warnings.
func (v View) events(s *snapshot) []string {
	var lines []string
	for _, p := range s.Pulls {
		lines = append(lines, v.paint(yellow, cut(clean(fmt.Sprintf("pulling %s for pod %s on %s, since %s", p.Image, p.Pod, p.Node, slurm.FormatSpan(s.At.Sub(p.Since)))), v.Width)))
	}
	for _, n := range s.Nodes {
		if n.Images.Of > 0 {
			lines = append(lines, v.paint(yellow, cut(clean(fmt.Sprintf("receiving parts of images on %s  %s %s of %s", n.Name, bar(n.Images), amount(n.Images.Used), amount(n.Images.Of))), v.Width)))
		}
	}
	for _, problem := range s.Problems {
		lines = append(lines, v.paint(red, cut("cannot read "+clean(problem), v.Width)))
	}
	for _, e := range s.Events[:min(len(s.Events), maxEvents)] {
		times := ""
		if e.Count > 1 {
			times = fmt.Sprintf(" (%d times)", e.Count)
		}
		lines = append(lines, v.paint(yellow, cut(clean(fmt.Sprintf("%s ago  %s  %s%s: %s", slurm.FormatSpan(s.At.Sub(e.At)), e.Object, e.Reason, times, e.Message)), v.Width)))
	}
	if len(lines) > 0 {
		lines = append([]string{""}, lines...)
	}
	return lines
}

// window returns the visible lines of a table: the heading, and the lines after
// the first Skip lines.
func (v View) window(lines []string, height int) []string {
	const heading = 2
	if height < heading+1 {
		return nil
	}
	body := lines[min(heading, len(lines)):]
	skip := min(v.Skip, max(0, len(body)-(height-heading)))
	body = body[skip:]
	if more := len(body) - (height - heading); more > 0 {
		body = append(slices.Clone(body[:height-heading-1]), v.paint(dim, fmt.Sprintf("... and %d more", more+1)))
	}
	return append(slices.Clone(lines[:heading]), body...)
}

// shorten omits the last lines of a table that is too long.
func (v View) shorten(lines []string, height int) []string {
	if len(lines) <= height {
		return lines
	}
	if height < 2 {
		return nil
	}
	return append(slices.Clone(lines[:height-1]), v.paint(dim, fmt.Sprintf("... and %d more", len(lines)-height+1)))
}

func (v View) paint(s style, text string) string {
	if !v.Colour || s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// clean removes control characters, because names and messages may contain escape
// sequences for the terminal.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, text)
}

// cut shortens text to a width.
func cut(text string, width int) string {
	if runes := []rune(text); width > 0 && len(runes) > width {
		return string(runes[:max(0, width-1)]) + "~"
	}
	return text
}

func cores(n float64) string {
	switch {
	case n < 0:
		return "-"
	case n == math.Trunc(n):
		return fmt.Sprintf("%.0f", n)
	case n < 10:
		return fmt.Sprintf("%.2f", n)
	}
	return fmt.Sprintf("%.1f", n)
}

// amount formats bytes with three digits and a binary unit.
func amount(n float64) string {
	if n < 0 {
		return "-"
	}
	units := []string{"B", "Ki", "Mi", "Gi", "Ti", "Pi"}
	i := 0
	for n >= 999.5 && i < len(units)-1 {
		n /= 1024
		i++
	}
	if n < 9.95 && i > 0 {
		return fmt.Sprintf("%.1f%s", n, units[i])
	}
	return fmt.Sprintf("%.0f%s", n, units[i])
}

func speed(n float64) string {
	if n < 0 {
		return "-"
	}
	return amount(n) + "/s"
}

// barWidth is the width of a bar with its brackets.
const barWidth = 12

// bar draws a share as a bar.
func bar(u use) string {
	if u.Used < 0 || u.Of <= 0 {
		return ""
	}
	full := int(math.Round(min(1, u.Used/u.Of) * (barWidth - 2)))
	return "[" + strings.Repeat("|", full) + strings.Repeat(" ", barWidth-2-full) + "]"
}
