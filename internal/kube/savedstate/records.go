package savedstate

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Record is an object as etcd stores it. Key is etcd's key without the common prefix.
type Record struct {
	Key   string
	Value []byte
}

// ClusterKey is the key of the record with what berth itself needs to continue a cluster. It
// is no object, and holds keys.
const ClusterKey = "berth/cluster"

// isSecret reports whether a record is a Secret, and isSealed whether it is encrypted.
func (r Record) isSecret() bool { return strings.HasPrefix(r.Key, "secrets/") }
func (r Record) isSealed() bool { return r.isSecret() || r.Key == ClusterKey }

// Facts describes the cluster that wrote the records.
type Facts struct {
	// Kubernetes is the version of the components, such as v1.36.3.
	Kubernetes string
	// Services holds the ranges of Service addresses, at most one of each family.
	Services []string
	// Revision is etcd's revision of the records.
	Revision int64 `json:",omitempty"`
	// Returning is set in what a cluster restores if nodes of other jobs return to it, with
	// their pods.
	Returning bool `json:",omitempty"`
}

const (
	// largestRecord bounds the length of a record. etcd's limit is 1.5 MiB.
	largestRecord = 16 << 20
	// largestFacts bounds the line of facts, which usually has a few hundred bytes.
	largestFacts = 64 << 10
)

// Write writes facts and records, and an end marker that lets Read detect missing
// records.
func Write(to io.Writer, facts Facts, records []Record) error {
	buffered := bufio.NewWriter(to)
	if err := json.NewEncoder(buffered).Encode(facts); err != nil {
		return err
	}
	for _, record := range records {
		writeBytes(buffered, []byte(record.Key))
		writeBytes(buffered, record.Value)
	}
	writeBytes(buffered, nil)
	return buffered.Flush()
}

// writeBytes leaves error handling to Flush.
func writeBytes(to *bufio.Writer, data []byte) {
	_, _ = to.Write(binary.AppendUvarint(nil, uint64(len(data))))
	_, _ = to.Write(data)
}

// Read reads the output of Write. It returns an error if records are missing at the end.
func Read(from io.Reader) (facts Facts, records []Record, err error) {
	buffered := bufio.NewReaderSize(from, largestFacts)
	if facts, err = readFacts(buffered); err != nil {
		return facts, nil, err
	}
	for {
		key, err := readBytes(buffered)
		if err != nil {
			return facts, nil, fmt.Errorf("read object %d of a cluster's state: %w", len(records)+1, err)
		}
		if len(key) == 0 {
			return facts, records, nil
		}
		value, err := readBytes(buffered)
		if err != nil {
			return facts, nil, fmt.Errorf("read object %s of a cluster's state: %w", key, err)
		}
		records = append(records, Record{string(key), value})
	}
}

// ReadFacts reads the facts in the output of Write.
func ReadFacts(from io.Reader) (Facts, error) {
	return readFacts(bufio.NewReaderSize(from, largestFacts))
}

func readFacts(from *bufio.Reader) (facts Facts, err error) {
	line, err := from.ReadSlice('\n')
	if err == nil {
		err = json.Unmarshal(line, &facts)
	}
	if err != nil {
		return facts, fmt.Errorf("read the facts of a cluster's state: %w", err)
	}
	return facts, nil
}

func readBytes(from *bufio.Reader) ([]byte, error) {
	length, err := binary.ReadUvarint(from)
	if err != nil {
		return nil, unexpected(err)
	}
	if length > largestRecord {
		return nil, fmt.Errorf("%d bytes are more than an object can have", length)
	}
	data := make([]byte, length)
	_, err = io.ReadFull(from, data)
	return data, unexpected(err)
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
