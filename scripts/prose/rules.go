package main

import (
	"regexp"
	"slices"
	"strings"
)

// rule is a phrase that marks a sentence to rewrite, and what to write instead.
type rule struct {
	phrase *regexp.Regexp
	remedy string
}

// rules lists the phrases that made this project's older comments hard to read.
// containerd, client-go and etcd have 2 to 4 of them in a thousand lines.
var rules = []rule{
	{words(`(?:is|are) (?:what|how|where|who|whose|those|whether)`), "name the thing with a noun or a verb: 'quantiles holds ...'"},
	{words(`tells? (?:whether|if|what|which|how)`), "write 'reports whether' or 'returns'"},
	{words(`(?:is|are|was|were|be|been) told`, `hears? of`, `is asked`), "write 'receives', 'is notified' or 'the caller passes'"},
	{words(`says? (?:what|which|how|whether|who|why|where|so)`), "write 'reports', 'describes', 'defines' or 'selects'"},
	{words(`(?:of|in|with|by|for|to|from|on|at|upon) (?:which|whom|whose)`), "split the sentence, or write 'whose' or 'where'"},
	{words(`those (?:of|that|who|which|in|with|it|they)`), "repeat the noun"},
	{words(`of (?:its|their|his|her|our|your|one's) own`, `of (?:berth|ours|theirs|Kubernetes|Slurm)'s`), "write 'its own X' or 'berth's X'"},
	{words(`\w+ alone`), "write 'only'"},
	{words(`anew|upon|likewise|thereby|therein|whereof|hitherto|shall|the like|such that|further on`, `in place of|for want of|gets? to know|makes? up for`), "use the everyday word"},
	{words(`lea(?:ve|ves|ving|ft) (?:\w+ )?away`), "write 'omit'"},
	{words(`has to be that`, `not be had`, `was not to be`), "write 'cannot' or 'is unavailable'"},
}

// harmless matches phrases that a rule finds but that are good English.
var harmless = regexp.MustCompile(`(?i)^(?:leave|let|stand) alone$`)

// marks reports whether the rule finds a phrase in the text.
func (r rule) marks(text string) bool {
	phrases := r.phrase.FindAllString(text, -1)
	return slices.ContainsFunc(phrases, func(phrase string) bool { return !harmless.MatchString(phrase) })
}

// words matches any of the phrases where they begin and end a word.
func words(phrases ...string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + strings.Join(phrases, "|") + `)\b`)
}
