package tunnel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/hashicorp/yamux"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

// received is a stream with prepared input. It discards output.
type received struct{ io.Reader }

func (received) Write(p []byte) (int, error) { return len(p), nil }
func (received) Close() error                { return nil }

// frames returns the output of the multiplexer of an end that opens a stream and
// sends a text on it.
func frames(f *testing.F, text string) []byte {
	f.Helper()
	near, far := net.Pipe()
	written := make(chan []byte)
	go func() {
		all, _ := io.ReadAll(far)
		written <- all
	}()
	session, err := yamux.Client(near, settings())
	if err != nil {
		f.Fatal(err)
	}
	stream, err := session.Open()
	if err == nil {
		_, err = io.WriteString(stream, text)
	}
	if err != nil {
		f.Fatal(err)
	}
	stream.Close()
	session.Close()
	return <-written
}

// FuzzOpen runs the near end on arbitrary output of a step.
func FuzzOpen(f *testing.F) {
	f.Add(append([]byte("hello\n"+opening), frames(f, `{"Protocol":1}`)...))
	f.Add([]byte(opening + "\x00\x00\x00\x02\x00\x00\x00\x01\xff\xff\xff\xff"))
	f.Add(bytes.Repeat([]byte("\n"), openingLimit+1))
	f.Fuzz(func(t *testing.T, stream []byte) {
		fuzzbound.Watch(t)
		opened, err := open(received{bytes.NewReader(stream)}, Request{})
		if err == nil {
			t.Errorf("opened, with the answer %+v", opened.Answer)
		}
	})
}

// FuzzServe runs the far end on arbitrary input from the login host.
func FuzzServe(f *testing.F) {
	f.Add(frames(f, `{"Protocol":1,"Job":"1","Key":"`+"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="+`"}`))
	f.Add(frames(f, `{"Protocol":`))
	f.Fuzz(func(t *testing.T, stream []byte) {
		fuzzbound.Watch(t)
		// Do not refuse: after a refusal the far end waits for the near end.
		find := func(context.Context, Request) (*Cluster, error) {
			ended := make(chan struct{})
			return &Cluster{Ended: ended, Dial: func(context.Context) (net.Conn, error) { return nil, errors.New("nobody") }}, nil
		}
		_ = Serve(t.Context(), received{bytes.NewReader(stream)}, Answer{}, find)
	})
}

// endless is a message without an end.
type endless struct{ sent int }

func (e *endless) Read(p []byte) (int, error) {
	if e.sent == 0 {
		e.sent = copy(p, `{"Version":"`)
		return e.sent, nil
	}
	if e.sent > 1<<30 {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = 'x'
	}
	e.sent += len(p)
	return len(p), nil
}

// FuzzMessages decodes arbitrary messages.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"Protocol":1,"Refusal":{"Reason":"several","Steps":["1","2"]}} {"Reason":"x"}`))
	f.Add([]byte(`{"Sealed":"AAAA"}`))
	key, err := newSealKey()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzbound.Watch(t)
		var answer Answer
		var request Request
		decoder := newDecoder(bytes.NewReader(text))
		for decoder.Decode(&answer) == nil {
		}
		if json.Unmarshal(text, &request) == nil {
			_, _ = encrypt(request.Key, Credentials{Key: text})
		}
		if credentials, err := decrypt(key, answer.Sealed); err == nil {
			t.Errorf("decrypted %+v", credentials)
		}
	})
}

func TestEndlessMessageIsRefused(t *testing.T) {
	from := &endless{}
	var request Request
	if err := newDecoder(from).Decode(&request); err == nil || from.sent > 4*messageLimit {
		t.Errorf("%d bytes were read, %v", from.sent, err)
	}
}
