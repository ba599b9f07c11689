package rendezvous

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func TestCandidatesOfStep(t *testing.T) {
	step := Step{Cluster: "c", Job: "12", Step: 3}
	ports := candidates(step, DefaultPorts(), 8)
	// Nodes may run different builds of one version, so the ports must never
	// change.
	if want := []uint16{21925, 23747, 22069, 28928, 25309, 28047, 28266, 24790}; !slices.Equal(ports, want) {
		t.Errorf("candidates %v, want %v", ports, want)
	}
	for _, other := range []Step{{"c", "12", 4, 0, false}, {"c", "13", 3, 0, false}, {"c", "12", 3, 1, false}, {"d", "12", 3, 0, false}, {"c", "1", 23, 0, false}, {"c", "12", 3, 0, true}} {
		if slices.Equal(candidates(other, DefaultPorts(), 8), ports) {
			t.Errorf("%v has the candidates of %v", other, step)
		}
	}
	for _, small := range []PortRange{{65533, 65535}, {1024, 1024}, {30000, 30007}} {
		found := candidates(step, small, 8)
		slices.Sort(found)
		if len(slices.Compact(found)) != min(8, small.size()) || found[0] < small.First || found[len(found)-1] > small.Last {
			t.Errorf("candidates in %s: %v", small, found)
		}
	}
}

func TestPortRanges(t *testing.T) {
	for text, want := range map[string]PortRange{"21000-28999": {21000, 28999}, " 5000 - 5001": {5000, 5001}, "4000": {4000, 4000}} {
		if got, err := ParsePortRange(text); err != nil || got != want {
			t.Errorf("%q is read as %v (%v)", text, got, err)
		}
	}
	for _, text := range []string{"", "-", "80-90", "5000-4000", "1-70000", "70000", "a-b", "5000-6000-7000"} {
		if _, err := ParsePortRange(text); err == nil {
			t.Errorf("%q is taken for a port range", text)
		}
	}
}

func TestAllProblemsAreReported(t *testing.T) {
	_, err := Listen(t.Context(), Config{Nodes: []string{"n1", "n1"}, Node: "n9", Ports: PortRange{1, 2}, Loss: -1})
	wantWords(t, err, "no id", "no prover", `"n9"`, "twice", "1-2", "negative")
	cfg := Config{Step: Step{Job: "1"}, Nodes: []string{"n1", "n2"}, Node: "n2", Prover: preShared(t)}
	_, err = Listen(t.Context(), cfg)
	wantWords(t, err, "has to join")
	_, err = Join(t.Context(), cfg, nil)
	wantWords(t, err, "no address")
	cfg.Node = "n1"
	_, err = Join(t.Context(), cfg, nil)
	wantWords(t, err, "has to listen")
	if _, err := NewPreShared(make([]byte, 31)); err == nil {
		t.Error("a short key is taken")
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(frame(frameMessage, []byte(`{"a":1}`)))
	f.Add([]byte{frameProof, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, input []byte) {
		fuzzbound.Watch(t)
		kind, content, err := readFrame(bytes.NewReader(input), 100)
		if err == nil && (len(content) > 100 || !bytes.Equal(frame(kind, content), input[:frameHeader+len(content)])) {
			t.Errorf("%q is read as %q %q", input, kind, content)
		}
	})
}

// FuzzClaim checks that a decoded claim stays the same when encoded and decoded
// again.
func FuzzClaim(f *testing.F) {
	text, err := encodeClaim(Claim{Protocol: protocol, Role: RoleHead, Node: "n1", Step: Step{Job: "1"}, Binding: []byte("x")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(append(text, text...))
	f.Fuzz(func(t *testing.T, input []byte) {
		fuzzbound.Watch(t)
		claim, err := decodeClaim(input)
		if err != nil {
			return
		}
		again, err := encodeClaim(claim)
		if err != nil {
			return
		}
		if other, err := decodeClaim(again); err != nil || other.check(claim) != nil && len(claim.Binding) > 0 {
			t.Errorf("%q becomes %q (%v)", input, again, err)
		}
	})
}

// FuzzCredential verifies arbitrary credentials. If signed is true, n1 has signed
// the text.
func FuzzCredential(f *testing.F) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		f.Fatal(err)
	}
	text, err := encodeClaim(Claim{Protocol: protocol, Role: RoleWorker, Node: "n1", Step: Step{Job: "1"}, Binding: []byte("x")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text, true)
	f.Add(text, false)
	f.Add([]byte(`{"node":"n2"}`), true)
	f.Fuzz(func(t *testing.T, credential []byte, signed bool) {
		fuzzbound.Watch(t)
		prover := NewSigned(private, func(_ context.Context, node string) (ed25519.PublicKey, error) {
			if node != "n1" {
				return nil, errors.New("no such node")
			}
			return public, nil
		})
		if signed {
			credential = append(ed25519.Sign(private, signedText(credential)), credential...)
		}
		claim, err := prover.Verify(t.Context(), credential)
		if err == nil && (!signed || claim.Node != "n1") {
			t.Errorf("%q is valid, signed %t: %+v", credential, signed, claim)
		}
	})
}
