package rendezvous

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Role is a side of a connection. A credential is valid for one role only, so
// nobody can reflect a credential to its maker.
type Role string

const (
	RoleHead   Role = "head"
	RoleWorker Role = "worker"
)

// protocol is the version of the protocol.
const protocol = 1

// maxClaim bounds the size of a claim and of a credential, in bytes.
const maxClaim = 8 << 10

// Claim is the content of a credential. It identifies the maker and a connection.
// The credential is valid only on that connection.
type Claim struct {
	Protocol int    `json:"protocol"`
	Role     Role   `json:"role"`
	Step     Step   `json:"of"`
	Node     string `json:"node"`
	// Binding is the exported keying material of the TLS connection, which only its
	// two ends know. A man in the middle has two connections with two different
	// values.
	Binding []byte `json:"binding"`
}

// Prover makes credentials that nobody else can make, and verifies the credentials
// of other members. It vouches for the maker of a claim (the user, or a holder of
// the key), not for the content. Both methods are safe for concurrent use.
type Prover interface {
	Prove(ctx context.Context, claim Claim) ([]byte, error)
	Verify(ctx context.Context, credential []byte) (Claim, error)
}

// errProtocol reports that the two sides run different versions of berth.
var errProtocol = errors.New("another version of berth runs there: use the same one on all nodes")

// check compares a proven claim with the claim that this connection requires. With
// an empty want.Node it accepts any node, and the head checks the name.
func (c Claim) check(want Claim) error {
	switch {
	case !bytes.Equal(c.Binding, want.Binding) || len(c.Binding) == 0:
		return errors.New("the credential was made for another connection: it is replayed, or somebody sits in between")
	case c.Role != want.Role:
		return fmt.Errorf("the credential is that of a %s, want a %s", c.Role, want.Role)
	case c.Protocol != want.Protocol:
		return fmt.Errorf("protocol %d, want %d: %w", c.Protocol, want.Protocol, errProtocol)
	case c.Step != want.Step:
		return fmt.Errorf("it belongs to step %s of this user, want %s", c.Step, want.Step)
	case want.Node != "" && c.Node != want.Node:
		return fmt.Errorf("it is node %q, want %q", c.Node, want.Node)
	}
	return nil
}

// encodeClaim returns the claim as JSON. A claim of more than maxClaim bytes is an error.
func encodeClaim(claim Claim) ([]byte, error) {
	text, err := json.Marshal(claim)
	if err == nil && len(text) > maxClaim {
		err = fmt.Errorf("it has %d bytes, at most %d are allowed", len(text), maxClaim)
	}
	if err != nil {
		return nil, fmt.Errorf("encode a claim: %w", err)
	}
	return text, nil
}

// decodeClaim decodes a claim strictly. Unknown fields and trailing data are
// errors, so that no two readers can see different claims.
func decodeClaim(text []byte) (Claim, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	var claim Claim
	if err := decoder.Decode(&claim); err != nil {
		return Claim{}, fmt.Errorf("read the claim in a credential: %w", err)
	}
	if decoder.More() || decoder.InputOffset() != int64(len(text)) {
		return Claim{}, errors.New("read the claim in a credential: something follows it")
	}
	return claim, nil
}
