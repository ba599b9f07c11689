package rendezvous

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
)

// minKey is the minimum size of a key, in bytes.
const minKey = 32

// PreShared proves with a key that all tasks of the step received over a private
// channel, such as the standard input of the step.
type PreShared struct{ key []byte }

// NewPreShared returns a prover for a random key of at least 32 bytes. Anyone who
// connects can see a credential, and could search for a guessable key.
func NewPreShared(key []byte) (*PreShared, error) {
	if len(key) < minKey {
		return nil, fmt.Errorf("use the key of the step: it has %d bytes, want at least %d random ones", len(key), minKey)
	}
	return &PreShared{key: append([]byte(nil), key...)}, nil
}

// Prove returns the authentication code, followed by the claim.
func (p *PreShared) Prove(_ context.Context, claim Claim) ([]byte, error) {
	text, err := encodeClaim(claim)
	if err != nil {
		return nil, err
	}
	return append(p.code(text), text...), nil
}

// Verify returns the claim if a holder of the key made it.
func (p *PreShared) Verify(_ context.Context, credential []byte) (Claim, error) {
	if len(credential) < sha256.Size || !hmac.Equal(credential[:sha256.Size], p.code(credential[sha256.Size:])) {
		return Claim{}, errors.New("the credential was not made with the key of this step")
	}
	return decodeClaim(credential[sha256.Size:])
}

func (p *PreShared) code(text []byte) []byte {
	mac := hmac.New(sha256.New, p.key)
	mac.Write([]byte("berth rendezvous claim\x00"))
	mac.Write(text)
	return mac.Sum(nil)
}
