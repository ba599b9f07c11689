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
	// function limits the rule to first lines of comments on functions.
	function bool
}

// rules lists the phrases that made this project's older comments hard to read.
// containerd, client-go and etcd have 2 to 4 of them in a thousand lines.
var rules = []rule{
	{phrase: regexp.MustCompile(`^\w+ (?:is|are) (?:not )?\w+`), remedy: "write 'returns', 'reports whether' or the verb of the effect", function: true},
	{phrase: words(`(?:is|are) (?:what|how|where|who|whose|those|whether)`), remedy: "name the thing with a noun or a verb: 'quantiles holds ...'"},
	{phrase: words(`tells? (?:whether|if|what|which|how)`), remedy: "write 'reports whether' or 'returns'"},
	{phrase: words(`(?:is|are|was|were|be|been) told`, `hears? of`, `is asked`), remedy: "write 'receives', 'is notified' or 'the caller passes'"},
	{phrase: words(`says? (?:what|which|how|whether|who|why|where|so)`), remedy: "write 'reports', 'describes', 'defines' or 'selects'"},
	{phrase: words(`(?:of|in|with|by|for|to|from|on|at|upon) (?:which|whom|whose)`), remedy: "split the sentence, or write 'whose' or 'where'"},
	{phrase: words(`those (?:of|that|who|which|in|with|it|they)`), remedy: "repeat the noun"},
	{phrase: words(`of (?:its|their|his|her|our|your|one's) own`, `of (?:berth|ours|theirs|Kubernetes|Slurm)'s`), remedy: "write 'its own X' or 'berth's X'"},
	{phrase: words(`\w+ alone`), remedy: "write 'only'"},
	{phrase: words(`anew|upon|likewise|thereby|therein|whereof|hitherto|shall|the like|such that|further on`, `in place of|for want of|gets? to know|makes? up for`), remedy: "use the everyday word"},
	{phrase: words(`lea(?:ve|ves|ving|ft) (?:\w+ )?away`), remedy: "write 'omit'"},
	{phrase: words(`has to be that`, `not be had`, `was not to be`), remedy: "write 'cannot' or 'is unavailable'"},
}

// harmless matches phrases that a rule finds but that are good English.
var harmless = regexp.MustCompile(`(?i)^(?:leave|let|stand) alone$|^\w+ (?:is|are) (?:called|like|not implemented)$`)

// marks reports whether the rule finds a phrase in the line.
func (r rule) marks(l line) bool {
	if r.function && !l.function {
		return false
	}
	phrases := r.phrase.FindAllString(l.text, -1)
	return slices.ContainsFunc(phrases, func(phrase string) bool { return !harmless.MatchString(phrase) })
}

// words matches any of the phrases where they begin and end a word.
func words(phrases ...string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + strings.Join(phrases, "|") + `)\b`)
}
