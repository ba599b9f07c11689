package savedstate

import (
	"bytes"
	"compress/gzip"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// A file consists of a line that identifies the format, a line of JSON (header), two
// parts, and the SHA-256 checksum of everything before it. The header has the lengths
// of the parts.
//
// The first part holds all records except Secrets, compressed with gzip. The second part
// holds the Secrets and the record with ClusterKey, compressed with gzip and then encrypted
// with AES-256-GCM. The header is the additional authenticated data.
const (
	magic  = "berth cluster state\n"
	format = 1
)

// header describes the contents of a file.
type header struct {
	Format int
	// Berth is the version of berth that wrote the file, and Run the name of the
	// cluster.
	Berth, Run string
	Saved      time.Time
	Facts      Facts
	// Objects is the number of objects in the cluster, including Secrets.
	Objects int
	// Secrets is the number of Secrets in the cluster. If Sealed is 0, the file does
	// not contain them.
	Secrets int
	// Plain and Sealed are the lengths of the two parts in bytes.
	Plain, Sealed int
}

// Snapshot is the state of a cluster at one moment.
type Snapshot struct {
	Facts   Facts
	Records []Record
	// Berth is the version of berth that saved the snapshot, and Run the name of the
	// cluster.
	Berth, Run string
	Saved      time.Time
	// Missing is the number of Secrets that Records does not contain.
	Missing int
}

// encode returns the content of a file for a snapshot. If key is nil, it omits Secrets.
func encode(s Snapshot, key []byte) ([]byte, error) {
	var plain, sealed []Record
	secrets := 0
	for _, record := range s.Records {
		if record.isSealed() {
			sealed = append(sealed, record)
		} else {
			plain = append(plain, record)
		}
		if record.isSecret() {
			secrets++
		}
	}
	packed, err := pack(s.Facts, plain)
	if err != nil {
		return nil, err
	}
	h := header{
		Format: format, Berth: s.Berth, Run: s.Run, Saved: s.Saved, Facts: s.Facts,
		Objects: len(s.Records), Secrets: secrets, Plain: len(packed),
	}
	var hidden []byte
	if key != nil && len(sealed) > 0 {
		if hidden, err = pack(s.Facts, sealed); err != nil {
			return nil, err
		}
		h.Sealed = len(hidden) + encryptionOverhead
	}
	line, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	file := append(append([]byte(magic), line...), '\n')
	file = append(file, packed...)
	if h.Sealed > 0 {
		encrypted, err := encrypt(key, hidden, line)
		if err != nil {
			return nil, err
		}
		file = append(file, encrypted...)
	}
	sum := sha256.Sum256(file)
	return append(file, sum[:]...), nil
}

// errDamaged is the error for a file with unexpected content.
var errDamaged = errors.New("it is damaged")

// errNewer is the error for a file of a later format.
var errNewer = errors.New("it was written by a newer berth; use that one")

// errForeignKey is the error for Secrets that were encrypted with another key.
var errForeignKey = errors.New("its Secrets are sealed with another key")

// decode returns the snapshot in the content of a file. If key is nil, it omits Secrets and
// counts them in Missing. It returns an error that wraps errDamaged, errNewer or
// errForeignKey.
func decode(file []byte, key []byte) (Snapshot, error) {
	if len(file) < len(magic)+sha256.Size || !bytes.HasPrefix(file, []byte(magic)) {
		return Snapshot{}, fmt.Errorf("%w: it is not the saved state of a cluster, or it is incomplete", errDamaged)
	}
	content, sum := file[:len(file)-sha256.Size], file[len(file)-sha256.Size:]
	line, parts, _ := bytes.Cut(content[len(magic):], []byte{'\n'})
	var h header
	// Check the version first: the rest of a newer format may differ.
	if err := json.Unmarshal(line, &h); err == nil && h.Format > format {
		return Snapshot{}, fmt.Errorf("%w (%s)", errNewer, h.Berth)
	}
	if actual := sha256.Sum256(content); !bytes.Equal(actual[:], sum) {
		return Snapshot{}, fmt.Errorf("%w: its checksum is wrong", errDamaged)
	}
	if h.Format != format || h.Plain < 0 || h.Sealed < 0 || h.Plain+h.Sealed != len(parts) {
		return Snapshot{}, fmt.Errorf("%w: its length differs from the one in its header", errDamaged)
	}
	s := Snapshot{Facts: h.Facts, Berth: h.Berth, Run: h.Run, Saved: h.Saved}
	var err error
	if s.Records, err = unpack(parts[:h.Plain]); err != nil {
		return Snapshot{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if h.Sealed == 0 || key == nil {
		s.Missing = h.Secrets
		return s, nil
	}
	hidden, err := decrypt(key, parts[h.Plain:], line)
	if err != nil {
		return Snapshot{}, errForeignKey
	}
	secrets, err := unpack(hidden)
	if err != nil {
		return Snapshot{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	s.Records = append(s.Records, secrets...)
	return s, nil
}

func pack(facts Facts, records []Record) ([]byte, error) {
	var packed bytes.Buffer
	// Prefer speed to size, because the end of a cluster waits for the last save.
	compressor, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := Write(compressor, facts, records); err != nil {
		return nil, err
	}
	err = compressor.Close()
	return packed.Bytes(), err
}

func unpack(packed []byte) ([]Record, error) {
	decompressor, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	_, records, err := Read(decompressor)
	return records, err
}

// encryptionOverhead is the number of bytes that encryption adds: a nonce and a tag.
const encryptionOverhead = 12 + 16

// encrypt returns a random nonce and the encrypted data. The key has 32 bytes.
func encrypt(key, data, additional []byte) ([]byte, error) {
	aead, err := newAEAD(key)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	if _, err := io.ReadFull(rand.Reader, nonce); err != nil {
		return nil, err
	}
	return aead.Seal(nonce, nonce, data, additional), nil
}

func decrypt(key, encrypted, additional []byte) ([]byte, error) {
	aead, err := newAEAD(key)
	if err != nil {
		return nil, err
	}
	if len(encrypted) < aead.NonceSize() {
		return nil, io.ErrUnexpectedEOF
	}
	return aead.Open(nil, encrypted[:aead.NonceSize()], encrypted[aead.NonceSize():], additional)
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
