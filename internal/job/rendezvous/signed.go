package rendezvous

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"sync"
)

// Signed proves with a key pair of each node. The private halves never leave
// their processes; what travels is public, so the way for it need not keep a
// secret: it only must be one that nobody but the user's tasks can write to.
type Signed struct {
	private ed25519.PrivateKey
	public  func(ctx context.Context, node string) (ed25519.PublicKey, error)

	mu sync.Mutex
	// proven keeps the keys that were right once: a node that is lost and
	// returns has the same, and the way that it came on may be gone.
	proven map[string]ed25519.PublicKey
}

// NewSigned takes the node's own key, and a function that returns the keys of
// other nodes. The function is called concurrently, for any name that an unknown
// client may claim, and again until the node has sent a valid credential.
func NewSigned(private ed25519.PrivateKey, public func(ctx context.Context, node string) (ed25519.PublicKey, error)) *Signed {
	return &Signed{private: private, public: public, proven: map[string]ed25519.PublicKey{}}
}

// Prove returns the claim behind its signature.
func (s *Signed) Prove(_ context.Context, claim Claim) ([]byte, error) {
	text, err := encodeClaim(claim)
	if err != nil {
		return nil, err
	}
	return append(ed25519.Sign(s.private, signedText(text)), text...), nil
}

// Verify returns the claim if the node that it names made it.
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

// signedText keeps signatures from meaning something elsewhere.
func signedText(claim []byte) []byte {
	return append([]byte("berth rendezvous claim\x00"), claim...)
}
