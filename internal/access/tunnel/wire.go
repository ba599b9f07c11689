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

// Protocol is the version of what the two ends say to each other.
const Protocol = 1

// opening is the first that the far end writes. Whatever comes before it is
// somebody else's: a TaskProlog of the site may print to a task's output.
const opening = "\x00berth tunnel\n"

// openingLimit bounds the bytes of other output before it.
const openingLimit = 1 << 20

// messageLimit bounds the bytes of all messages that an end reads.
const messageLimit = 1 << 20

// newDecoder returns a decoder of an end's messages.
func newDecoder(from io.Reader) *json.Decoder {
	return json.NewDecoder(io.LimitReader(from, messageLimit))
}

// Order is the near end's request.
type Order struct {
	Protocol int
	// Version is that of the near end's berth.
	Version string
	// Job is Slurm's number of it, Step that of the step with the cluster, or
	// empty where there is only one cluster.
	Job, Step string
	// Key is the public key that seals the credentials.
	Key []byte
}

// Answer is the far end's answer to an Order.
type Answer struct {
	Protocol int
	Version  string
	// Node is Slurm's name of the far end's.
	Node string
	// Cluster is the run that was found, empty with a refusal.
	Cluster string
	// Others lists other nodes that reach it.
	Others  []string
	Refusal *Refusal
	// Sealed are Credentials for the near end's key.
	Sealed []byte
}

// Reason is why there is no tunnel to a cluster.
type Reason string

const (
	// None: no cluster of the job is on this node.
	None Reason = "none"
	// Elsewhere: the node belongs to a cluster whose API server is on another.
	Elsewhere Reason = "elsewhere"
	// Several: it is not clear which cluster is meant.
	Several Reason = "several"
	// Other: the far end failed.
	Other Reason = "other"
)

// Refusal is the far end's answer where there is no cluster to reach.
type Refusal struct {
	Reason Reason
	Text   string
	// Node is the far end's.
	Node string
	// Head is the node to ask instead, where the reason is Elsewhere.
	Head string
	// Steps lists the steps with clusters, if the reason is Several.
	Steps []string
}

func (r *Refusal) Error() string { return r.Text }

// Credentials holds a client's credentials for the API server, in PEM.
type Credentials struct {
	Authority, Cert, Key []byte
}

// farewell is the last that the far end says.
type farewell struct{ Reason string }

// sealInfo keeps what is sealed here from being of use anywhere else.
const sealInfo = "berth tunnel credentials 1"

func newSealKey() (hpke.PrivateKey, error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return hpke.NewDHKEMPrivateKey(key)
}

func seal(to []byte, credentials Credentials) ([]byte, error) {
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
	return hpke.Seal(key, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(sealInfo), encoded)
}

func unseal(key hpke.PrivateKey, sealed []byte) (Credentials, error) {
	var credentials Credentials
	encoded, err := hpke.Open(key, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(sealInfo), sealed)
	if err == nil {
		err = json.Unmarshal(encoded, &credentials)
	}
	if err != nil {
		return Credentials{}, fmt.Errorf("open the sealed credentials: %w", err)
	}
	return credentials, nil
}

// settings of the multiplexer. Silence is no reason to give up: a job can be
// suspended, and Ping asks whoever wants to know.
func settings() *yamux.Config {
	config := yamux.DefaultConfig()
	config.EnableKeepAlive = false
	config.StreamOpenTimeout = 0
	config.StreamCloseTimeout = 0 // a connection may be closed in one direction for long
	config.ConnectionWriteTimeout = 24 * time.Hour
	config.MaxStreamWindowSize = 1 << 20
	config.LogOutput = io.Discard // what matters of it comes back as errors
	return config
}
