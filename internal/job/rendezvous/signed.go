package rendezvous

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"sync"
)

// Signed proves with a key pair of each node. The private keys never leave their
// processes. The public keys need no secrecy, but only the user's tasks may be able
// to publish them.
type Signed struct {
	private ed25519.PrivateKey
	public  func(ctx context.Context, node string) (ed25519.PublicKey, error)

	mu sync.Mutex
	// proven keeps the keys that have verified a credential. A lost node returns
	// with the same key, and the source of the keys may be gone by then.
	proven map[string]ed25519.PublicKey
}

// NewSigned returns a prover for the node's own key, and a function that returns
// the keys of other nodes. The function is called concurrently, for any name that
// an unknown client claims, and again until the node has sent a valid credential.
func NewSigned(private ed25519.PrivateKey, public func(ctx context.Context, node string) (ed25519.PublicKey, error)) *Signed {
	return &Signed{private: private, public: public, proven: map[string]ed25519.PublicKey{}}
}

// Prove returns the signature, followed by the claim.
func (s *Signed) Prove(_ context.Context, claim Claim) ([]byte, error) {
	text, err := encodeClaim(claim)
	if err != nil {
		return nil, err
	}
	return append(ed25519.Sign(s.private, signedText(text)), text...), nil
}

// Verify returns the claim if the node in the claim signed it.
func (s *Signed) Verify(ctx context.Context, credential []byte) (Claim, error) {
	if len(credential) < ed25519.SignatureSize {
		return Claim{}, errors.New("the credential has no signature")
	}
	signature, text := credential[:ed25519.SignatureSize], credential[ed25519.SignatureSize:]
	claim, err := decodeClaim(text)
	if err != nil {
		return Claim{}, err
	}
	key, err := s.key(ctx, claim.Node)
	if err != nil {
		return Claim{}, fmt.Errorf("find the key of node %q: %w", claim.Node, err)
	}
	if len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, signedText(text), signature) {
		return Claim{}, fmt.Errorf("the credential was not made with the key of node %q", claim.Node)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proven[claim.Node] = key
	return claim, nil
}

func (s *Signed) key(ctx context.Context, node string) (ed25519.PublicKey, error) {
	s.mu.Lock()
	key := s.proven[node]
	s.mu.Unlock()
	if key != nil {
		return key, nil
	}
	return s.public(ctx, node)
}

// signedText adds a prefix, so that a signature is invalid in any other protocol.
func signedText(claim []byte) []byte {
	return append([]byte("berth rendezvous claim\x00"), claim...)
}
