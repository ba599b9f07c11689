package batch

import (
	"fmt"
	"strings"
)

// Own reports whether berth has an option of this long name or letter, and whether
// the option takes a value.
type Own func(name string) (takesValue, ok bool)

// Arguments holds a command line, split into its parts.
type Arguments struct {
	// Own holds berth's options; Command holds the words after "--".
	Own, Command []string
	// Options holds the options of sbatch, in order.
	Options []Option
}

// Option is an option of sbatch, as it was written.
type Option struct {
	// Name is the long name if it is known. The name ":" separates the components
	// of a heterogeneous job.
	Name string
	// Value is the value of an option that takes one.
	Value string
	// Words holds the one or two words to pass to sbatch.
	Words []string
}

// Get returns the value of the last option of a name.
func (l Arguments) Get(name string) (value string, given bool) {
	for _, option := range l.Options {
		if option.Name == name {
			value, given = option.Value, true
		}
	}
	return value, given
}

// Split separates the options of berth from the options of sbatch. An option that
// berth does not know goes to sbatch: a plugin of the site may provide it. Such an
// option takes a value if the next word is not an option, because a command comes
// only after "--". The two are then joined with "=", so that sbatch does not take
// the value for the script.
func Split(args []string, own Own) (Arguments, error) {
	s := splitter{rest: args, own: own}
	for len(s.rest) > 0 {
		word := s.rest[0]
		s.rest = s.rest[1:]
		switch {
		case word == "--":
			s.line.Command = s.rest
			return s.line, nil
		case word == ":":
			s.add(":", "", word)
		case strings.HasPrefix(word, "--"):
			if err := s.long(word); err != nil {
				return Arguments{}, err
			}
		case len(word) > 1 && word[0] == '-':
			if err := s.short(word); err != nil {
				return Arguments{}, err
			}
		default:
			return Arguments{}, fmt.Errorf("unexpected argument %q: manifests are given with -f, and a command comes after '--'", word)
		}
	}
	return s.line, nil
}

type splitter struct {
	rest []string
	own  Own
	line Arguments
}

func (s *splitter) add(name, value string, words ...string) {
	s.line.Options = append(s.line.Options, Option{Name: name, Value: value, Words: words})
}

// next returns the next word as the value of an option.
func (s *splitter) next(option string) (string, error) {
	if len(s.rest) == 0 {
		return "", fmt.Errorf("option %s needs a value", option)
	}
	word := s.rest[0]
	s.rest = s.rest[1:]
	return word, nil
}

func (s *splitter) long(word string) error {
	name, value, attached := strings.Cut(word[2:], "=")
	if takesValue, ok := s.own(name); ok {
		s.line.Own = append(s.line.Own, word)
		if takesValue && !attached {
			value, err := s.next(word)
			if err != nil {
				return err
			}
			s.line.Own = append(s.line.Own, value)
		}
		return nil
	}
	name, takes := find(name)
	switch {
	case attached:
		s.add(name, value, word)
	case takes == required:
		value, err := s.next(word)
		if err != nil {
			return err
		}
		s.add(name, value, word, value)
	case takes == unknown && len(s.rest) > 0 && s.rest[0] != ":" && !strings.HasPrefix(s.rest[0], "-"):
		value, _ := s.next(word)
		s.add(name, value, word+"="+value)
	default:
		s.add(name, "", word)
	}
	return nil
}

// short reads a word of letters: several without values, and one with, whose
// value is the rest of the word or the next one.
func (s *splitter) short(word string) error {
	for i := 1; i < len(word); i++ {
		letter, rest := word[i:i+1], word[i+1:]
		takesValue, isOwn := s.own(letter)
		name, takes := find(letters[word[i]])
		if letters[word[i]] == "" {
			name, takes = letter, unknown
		}
		switch {
		case isOwn && !takesValue:
			s.line.Own = append(s.line.Own, "-"+letter)
			continue
		case !isOwn && takes == none:
			s.add(name, "", "-"+letter)
			continue
		case !isOwn && takes != required: // its value, if any, is the rest of the word
			s.add(name, rest, "-"+word[i:])
			return nil
		}
		value := rest
		if rest == "" {
			var err error
			if value, err = s.next("-" + letter); err != nil {
				return err
			}
		}
		switch {
		case isOwn:
			s.line.Own = append(s.line.Own, "-"+letter, value)
		case rest == "":
			s.add(name, value, "-"+letter, value)
		default:
			s.add(name, value, "-"+letter+value)
		}
		return nil
	}
	return nil
}
