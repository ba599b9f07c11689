package tunnel

import (
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/yamux"
)

// Protocol is the version of the protocol between the two ends.
const Protocol = 1

// opening marks the start of the far end's output. Earlier output has another
// source: for example, a site's TaskProlog may print to a task's output.
const opening = "\x00berth tunnel\n"

// openingLimit bounds the bytes of output before opening.
const openingLimit = 1 << 20

// messageLimit bounds the bytes of all messages that an end reads.
const messageLimit = 1 << 20

// newDecoder returns a decoder of messages.
func newDecoder(from io.Reader) *json.Decoder {
	return json.NewDecoder(io.LimitReader(from, messageLimit))
}

// Request is the near end's request.
type Request struct {
	Protocol int
	// Version is the near end's version of berth.
	Version string
	// Job is Slurm's job ID. Step is the ID of the step with the cluster, or empty
	// if there is only one cluster.
	Job, Step string
	// Key is the public key that encrypts the credentials.
	Key []byte
}

// Answer is the far end's answer to a Request.
type Answer struct {
	Protocol int
	Version  string
	// Node is Slurm's name of the far end's node.
	Node string
	// Cluster is the name of the run, or empty with a refusal.
	Cluster string
	// Others lists other nodes that reach the cluster.
	Others  []string
	Refusal *Refusal
	// Sealed holds the encrypted Credentials, for the near end's key.
	Sealed []byte
}

// Reason classifies a Refusal.
type Reason string

const (
	// None means that no cluster of the job is on this node.
	None Reason = "none"
	// Elsewhere means that the API server of this node's cluster is on another
	// node.
	Elsewhere Reason = "elsewhere"
	// Several means that the job has several clusters.
	Several Reason = "several"
	// Other means that the far end failed.
	Other Reason = "other"
)

// Refusal is the far end's answer if there is no cluster to reach.
type Refusal struct {
	Reason Reason
	Text   string
	// Node is the far end's node.
	Node string
	// Head is the node to try instead, if the reason is Elsewhere.
	Head string
	// Steps lists the steps with clusters, if the reason is Several.
	Steps []string
}

func (r *Refusal) Error() string { return r.Text }

// Credentials holds a client's credentials for the API server, in PEM.
type Credentials struct {
	Authority, Cert, Key []byte
}

// farewell is the last message of the far end.
type farewell struct{ Reason string }

// encryptionInfo binds encrypted data to this purpose.
const encryptionInfo = "berth tunnel credentials 1"

func newSealKey() (hpke.PrivateKey, error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return hpke.NewDHKEMPrivateKey(key)
}

func encrypt(to []byte, credentials Credentials) ([]byte, error) {
	public, err := ecdh.X25519().NewPublicKey(to)
	if err != nil {
		return nil, fmt.Errorf("read the key to seal credentials to: %w", err)
	}
	key, err := hpke.NewDHKEMPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("read the key to seal credentials to: %w", err)
	}
	encoded, err := json.Marshal(credentials)
	if err != nil {
		return nil, err
	}
	return hpke.Seal(key, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(encryptionInfo), encoded)
}

func decrypt(key hpke.PrivateKey, encrypted []byte) (Credentials, error) {
	var credentials Credentials
	encoded, err := hpke.Open(key, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(encryptionInfo), encrypted)
	if err == nil {
		err = json.Unmarshal(encoded, &credentials)
	}
	if err != nil {
		return Credentials{}, fmt.Errorf("open the sealed credentials: %w", err)
	}
	return credentials, nil
}

// settings returns the multiplexer's configuration. It has no timeouts, because a
// job can be suspended. Callers use Ping to check the other end.
func settings() *yamux.Config {
	config := yamux.DefaultConfig()
	config.EnableKeepAlive = false
	config.StreamOpenTimeout = 0
	config.StreamCloseTimeout = 0 // a connection may stay half-closed for long
	config.ConnectionWriteTimeout = 24 * time.Hour
	config.MaxStreamWindowSize = 1 << 20
	config.LogOutput = io.Discard // important problems are returned as errors
	return config
}
