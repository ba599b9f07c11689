package workload

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/kube/containerlog"
)

const (
	// annotationLimit is the longest result of Progress.String. The API server takes
	// 256 KiB of annotations for an object.
	annotationLimit = 240 << 10
	// annotatedLines bounds the beginnings of lines in the annotation, in bytes, and
	// annotatedComplete the number of complete logs. The pods of the oldest are likely
	// to be deleted.
	annotatedLines, annotatedComplete = 48 << 10, 10_000
)

// Followed is the state of following a workload that another process needs to
// continue.
type Followed struct {
	// Marks maps a container to the place in its log, or a container and stream where
	// the API server gives the log.
	Marks map[string]Mark `json:"marks,omitempty"`
	// Complete holds the hashes of the keys of logs that were passed on as a whole, in
	// the order of their ends. Ended holds the hashes of the UIDs of objects that
	// ended.
	Complete []string `json:"complete,omitempty"`
	Ended    []string `json:"ended,omitempty"`
	// Result has the first failure of an object in Ended.
	Result Result `json:"result"`
	// Losses sums up the output that was lost.
	Losses Losses `json:"losses"`
}

// Step is a change of a Progress. Key is the UID of an object if Ended is set, and
// otherwise the key of a log.
type Step struct {
	Key string `json:"key"`
	// Mark is the place reached in the log.
	Mark Mark `json:"mark"`
	// Begun reports that following the log has begun.
	Begun bool `json:"begun,omitempty"`
	// Complete reports that the log is complete. Dropped reports that its node does not
	// serve it, so that it is followed at the API server.
	Complete bool `json:"complete,omitempty"`
	Dropped  bool `json:"dropped,omitempty"`
	// Ended is the result of the workload so far.
	Ended *Result `json:"ended,omitempty"`
	// Lost holds the output that was lost since the last step of the log. It is the only
	// field of a step without a Key.
	Lost []LostOutput `json:"lost,omitempty"`
}

// LostOutput is output that was lost, and the message about it.
type LostOutput struct {
	containerlog.Loss
	Message string `json:"message"`
}

// FollowsOutput reports whether the step must not overtake the output before it.
func (s Step) FollowsOutput() bool { return !s.Begun && s.Ended == nil }

// Progress records what was followed. Another process can continue from it. All
// methods may be called concurrently, and on a nil Progress.
type Progress struct {
	mu       sync.Mutex
	followed Followed
	// applied is called for each step; it may be nil.
	applied func(Step)
}

// NewProgress returns a Progress that begins with followed, and calls applied for each
// step. When it calls applied with a step that follows output, that output has been
// written, and no other such step is being made.
func NewProgress(followed Followed, applied func(Step)) *Progress {
	return &Progress{followed: followed, applied: applied}
}

// Followed returns a copy of the state.
func (p *Progress) Followed() Followed {
	if p == nil {
		return Followed{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	followed := p.followed
	followed.Marks = maps.Clone(followed.Marks)
	followed.Complete, followed.Ended = slices.Clip(followed.Complete), slices.Clip(followed.Ended)
	return followed
}

// ReadProgress returns the Progress that a text of Progress.String describes. For any
// other text, it returns a Progress at the beginning of all logs.
func ReadProgress(text string) *Progress {
	p := &Progress{}
	compressed, _ := base64.RawStdEncoding.DecodeString(text)
	encoded, err := io.ReadAll(flate.NewReader(bytes.NewReader(compressed)))
	if err == nil {
		_ = json.Unmarshal(encoded, &p.followed)
	}
	return p
}

// String returns the state as a text of at most annotationLimit bytes. It omits what does
// not fit: beginnings of lines, which are counted as lost, and then places in logs,
// which are passed on again.
func (p *Progress) String() string {
	followed := p.Followed()
	followed.Complete = followed.Complete[max(0, len(followed.Complete)-annotatedComplete):]
	followed.cutLines(annotatedLines)
	for {
		text := followed.encode()
		if len(text) <= annotationLimit || len(followed.Marks) == 0 {
			return text
		}
		keys := slices.Sorted(maps.Keys(followed.Marks))
		for _, key := range keys[:(len(keys)+7)/8] {
			delete(followed.Marks, key)
		}
	}
}

// cutLines removes the longest beginnings of lines until the rest has at most limit
// bytes, and counts them as lost.
func (f *Followed) cutLines(limit int) {
	length := func(key string) int { return len(f.Marks[key].Out) + len(f.Marks[key].Err) }
	keys := slices.SortedFunc(maps.Keys(f.Marks), func(a, b string) int { return length(a) - length(b) })
	for _, key := range keys {
		mark := f.Marks[key]
		mark.Behind = 0
		if limit -= length(key); limit < 0 && length(key) > 0 {
			f.Losses.Add(containerlog.Loss{Bytes: int64(length(key))})
			mark.Out, mark.Err = nil, nil
		}
		f.Marks[key] = mark
	}
}

func (f *Followed) encode() string {
	var compressed bytes.Buffer
	writer, err := flate.NewWriter(&compressed, flate.DefaultCompression)
	if err != nil {
		return "" // the level is valid
	}
	// A buffer takes everything, and strings and numbers always encode.
	_ = json.NewEncoder(writer).Encode(f)
	_ = writer.Close()
	return base64.RawStdEncoding.EncodeToString(compressed.Bytes())
}

// hash returns 8 characters, or 48 bits, for a key. Among 10,000 keys, two have the same
// hash with a probability of 2e-7.
func hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return base64.RawStdEncoding.EncodeToString(sum[:6])
}

// of returns the mark of a log, and whether the log is complete.
func (p *Progress) of(key string) (mark Mark, complete bool) {
	if p == nil {
		return Mark{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.followed.Marks[key], slices.Contains(p.followed.Complete, hash(key))
}

// begun reports whether another process has followed the workload before.
func (f Followed) begun() bool {
	return len(f.Marks)+len(f.Complete)+len(f.Ended) > 0
}

func (f Followed) hasEnded(uid types.UID) bool { return slices.Contains(f.Ended, hash(string(uid))) }

// Apply records a step, and passes it to the function given to NewProgress.
func (p *Progress) Apply(step Step) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.followed.apply(step)
	p.mu.Unlock()
	if p.applied != nil {
		p.applied(step)
	}
}

func (f *Followed) apply(step Step) {
	if f.Marks == nil {
		f.Marks = map[string]Mark{}
	}
	for _, lost := range step.Lost {
		f.Losses.Add(lost.Loss)
	}
	_, known := f.Marks[step.Key]
	switch {
	case step.Key == "":
	case step.Ended != nil:
		f.Ended = append(f.Ended, hash(step.Key))
		if f.Result.Code == 0 {
			f.Result = *step.Ended
		}
	case step.Complete:
		f.Complete = append(f.Complete, hash(step.Key))
		delete(f.Marks, step.Key)
	case step.Dropped:
		// Unwritten output of the log that the API server serves counts from here.
		if unwritten := f.Marks[step.Key].Unwritten; unwritten > 0 {
			f.Marks[step.Key] = Mark{Unwritten: unwritten}
		} else {
			delete(f.Marks, step.Key)
		}
	case !step.Begun, !known && !slices.Contains(f.Complete, hash(step.Key)):
		f.Marks[step.Key] = step.Mark
	}
}
