package workload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// kubeletError is an error of the kubelet about a log. The kubelet sends the text of the
// error after status 200, so it looks like the container's output.
type kubeletError struct {
	begin string
	// following is set if the kubelet has this error only while it follows a log.
	following bool
	// opening is set if the text without output before it means that the kubelet has not
	// opened the log.
	opening bool
	// place returns what the text also contains: the log's folder or the container's ID.
	place func(*stream) string
}

// kubeletErrors lists the errors that reach a client, in kubelet v1.36:
// k8s.io/cri-client/pkg/logs/logs.go and
// pkg/kubelet/kuberuntime/kuberuntime_container.go. A test holds the list against
// those files.
var kubeletErrors = []kubeletError{
	{begin: "failed to create fsnotify watcher: ", following: true},
	{begin: "failed to watch directory ", following: true, place: (*stream).folder},
	{begin: "failed to try resolving symlinks in path ", opening: true, place: (*stream).folder},
	{begin: "failed to open log file ", opening: true, place: (*stream).folder},
	{begin: "failed to read log file ", place: (*stream).folder},
	{begin: "unable to retrieve container logs for ", opening: true, place: func(s *stream) string { return s.containerID }},
}

// folder returns the end of the path of the folder where the runtime keeps the log.
func (s *stream) folder() string {
	return fmt.Sprintf("/%s_%s_%s/%s", s.namespace, s.pod, s.podUID, s.container)
}

var (
	// errKubelet says that the kubelet could not read or follow a log to its end.
	errKubelet = errors.New("the kubelet cannot give the log")
	// errUnopened is errKubelet without any output before it.
	errUnopened = fmt.Errorf("%w", errKubelet)
)

// longestError bounds the bytes that a reader keeps back. It is more than the
// longest path and the words around it.
const longestError = 16 << 10

// shortestBegin is the number of bytes that a reader must match to hold them back. Fewer
// bytes pass at once, because a prompt may end with them.
const shortestBegin = len("failed to ")

// kubeletReader reads a log, and returns the kubelet's words at the end as an error.
type kubeletReader struct {
	io.ReadCloser
	stream *stream
	follow bool
	// held is the end of the data so far, which may be the kubelet's words.
	held   []byte
	passed bool // Read has returned bytes of the log
	buffer []byte
	out    []byte // to be returned by Read
	err    error
}

func (r *kubeletReader) Read(data []byte) (int, error) {
	for len(r.out) == 0 && r.err == nil {
		r.fill()
	}
	n := copy(data, r.out)
	r.out = r.out[n:]
	r.passed = r.passed || n > 0
	if len(r.out) > 0 {
		return n, nil
	}
	return n, r.err
}

// fill reads once, and divides what it has into out and held.
func (r *kubeletReader) fill() {
	if r.buffer == nil {
		r.buffer = make([]byte, 32<<10)
	}
	n, err := r.ReadCloser.Read(r.buffer)
	all := append(r.held, r.buffer[:n]...)
	at := r.find(all)
	r.out, r.held, r.err = all[:at:at], bytes.Clone(all[at:]), err
	if errors.Is(err, io.EOF) {
		if r.err = r.judge(); errors.Is(r.err, io.EOF) {
			r.out = all
		}
	}
}

// find returns the offset in the last line where the kubelet's words may begin, or the
// length of data.
func (r *kubeletReader) find(data []byte) int {
	for at := max(bytes.LastIndexByte(data, '\n')+1, len(data)-longestError); at+shortestBegin <= len(data); at++ {
		for _, known := range kubeletErrors {
			n := min(len(known.begin), len(data)-at)
			if (r.follow || !known.following) && string(data[at:at+n]) == known.begin[:n] {
				return at
			}
		}
	}
	return len(data)
}

// judge returns errKubelet or errUnopened with the text in held if that is an error of the
// kubelet. It returns io.EOF if held is the container's output.
func (r *kubeletReader) judge() error {
	held := string(r.held)
	for _, known := range kubeletErrors {
		switch {
		case !strings.HasPrefix(held, known.begin), known.following && !r.follow:
		case known.place != nil && !strings.Contains(held[len(known.begin):], known.place(r.stream)):
		case known.opening && !r.passed && len(r.out) == 0:
			return fmt.Errorf("%w: %s", errUnopened, held)
		default:
			return fmt.Errorf("%w: %s", errKubelet, held)
		}
	}
	return io.EOF
}
