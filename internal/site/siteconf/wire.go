package siteconf

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// protocolVersion begins every message. A side that does not support the other's version
// reports an error.
const protocolVersion = "berthd/1"

// maxMessage bounds a message, in bytes. The largest part of a message is a list of
// nodes, which Slurm compresses.
const maxMessage = 64 << 10

// Socket is the name of berthd's socket in its directory.
const Socket = "berthd.sock"

// Message is a request or a reply: a line with the protocol and a verb, a line for
// each field, and an empty line. A few lines of C can write it.
//
//	berthd/1 attach
//	job 42
//	uid 1000
type Message struct {
	Verb   string
	Fields map[string]string
}

// Verbs of requests and replies.
const (
	VerbAttach  = "attach"
	VerbRelease = "release"
	VerbLogin   = "login"
	VerbDecline = "decline"
	VerbName    = "name"
	VerbServe   = "serve"
	VerbStatus  = "status"
	VerbOK      = "ok"
	VerbError   = "error"
)

// Encode writes the message, with its fields sorted by name.
func (m Message) Encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s\n", protocolVersion, m.Verb)
	for _, name := range slices.Sorted(maps.Keys(m.Fields)) {
		value := strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return ' '
			}
			return r
		}, m.Fields[name])
		fmt.Fprintf(&b, "%s %s\n", name, value)
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// complete reports whether the text holds a whole message.
func complete(text []byte) bool { return bytes.HasSuffix(text, []byte("\n\n")) }

// decode reads a message. The text may come from any user of the node.
func decode(text []byte) (Message, error) {
	if len(text) > maxMessage {
		return Message{}, fmt.Errorf("read message: longer than %d bytes", maxMessage)
	}
	if !complete(text) {
		return Message{}, errors.New("read message: it has no end")
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n\n"), "\n")
	protocol, verb, _ := strings.Cut(lines[0], " ")
	if protocol != protocolVersion {
		return Message{}, fmt.Errorf("read message: protocol %.20q, want %s: install the same version of berthd and of the plugin", protocol, protocolVersion)
	}
	if !isWord(verb) {
		return Message{}, fmt.Errorf("read message: verb %.20q", verb)
	}
	m := Message{Verb: verb, Fields: map[string]string{}}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, " ")
		if !isWord(name) {
			return Message{}, fmt.Errorf("read message: field %.20q", name)
		}
		if _, twice := m.Fields[name]; twice {
			return Message{}, fmt.Errorf("read message: field %s is there twice", name)
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return Message{}, fmt.Errorf("read message: field %s has a control character", name)
		}
		// The name of a job may have any encoding.
		m.Fields[name] = strings.ToValidUTF8(value, "?")
	}
	return m, nil
}

func isWord(s string) bool {
	return s != "" && len(s) <= 32 && !strings.ContainsFunc(s, func(r rune) bool { return r < 'a' || r > 'z' })
}
