package login

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

// received is a connection with prepared input. It discards output.
type received struct {
	net.Conn
	io.Reader
}

func (r received) Read(p []byte) (int, error)    { return r.Reader.Read(p) }
func (received) Write(p []byte) (int, error)     { return len(p), nil }
func (received) Close() error                    { return nil }
func (received) SetReadDeadline(time.Time) error { return nil }

// FuzzReplies sends a command arbitrary replies of the process that keeps the
// tunnel.
func FuzzReplies(f *testing.F) {
	f.Add([]byte(`{"Kubeconfig":"/a","Node":"n1"} {} {"Problem":{"Text":"it has ended"}}`))
	f.Add([]byte(`{"Problem":null} {"Jobs":[{}],"Without":["1"]} {} {} {}`))
	f.Fuzz(func(t *testing.T, replies []byte) {
		fuzzbound.Watch(t)
		session, err := greet(t.Context(), received{Reader: bytes.NewReader(replies)}, Target{Job: "1"})
		if err != nil {
			return
		}
		for range 3 {
			if session.Check() != nil {
				break
			}
		}
		session.Close()
		select {
		case <-session.Lost():
		case <-session.checked: // unexpected replies
		}
	})
}

// FuzzQuestions sends the process that keeps a tunnel arbitrary requests. Its
// tunnel has ended, so it answers each with the reason.
func FuzzQuestions(f *testing.F) {
	for _, do := range []string{doHold, doCheck, doCheckJob} {
		text, err := json.Marshal(question{Do: do})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(text, text...))
	}
	f.Fuzz(func(t *testing.T, questions []byte) {
		fuzzbound.Watch(t)
		var q question
		if json.NewDecoder(bytes.NewReader(questions)).Decode(&q) == nil && q.Do == doJobs {
			return // this would query Slurm
		}
		k := &tunnelServer{ready: make(chan struct{}), over: make(chan struct{}), without: map[string]time.Time{}}
		k.conclude(problem(codeUnavailable, "it has ended"))
		k.serve(t.Context(), received{Reader: bytes.NewReader(questions)})
		if k.users != 0 {
			t.Errorf("%d commands use it", k.users)
		}
	})
}
