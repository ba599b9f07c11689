package containerlog

import "bytes"

// batch holds the records of one reading of a file.
type batch struct {
	frames []Frame
	// size is the number of bytes of the file that the frames were decoded from.
	size int64
}

// lines decodes records of the CRI log format:
//
//	2026-11-24T17:40:04.123456789Z stdout F text
//
// A record with the tag P instead of F is a part of a line that continues in the
// stream's next record. The format is that of kubernetes/design-proposals
// node/kubelet-cri-logging.md.
type lines struct {
	// openOut and openErr report whether the last record of standard output and standard
	// error was a part of a line.
	openOut, openErr bool
}

// decode returns the complete records at the beginning of data. If possible, they end at
// the end of a line in both streams, so that a client that continues there has whole
// lines. With flush, it also decodes an incomplete last record. It skips lines that are
// no records.
func (l *lines) decode(data []byte, flush bool) batch {
	var b batch
	open := *l
	complete, completeFrames, completeLength := int64(0), 0, 0
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		next := end + 1
		if end < 0 {
			if !flush {
				break
			}
			end, next = len(data), len(data)
		}
		kind, text, full, ok := record(data[:end])
		if ok {
			b.add(kind, text, full)
			if kind == KindStdout {
				open.openOut = !full
			} else {
				open.openErr = !full
			}
		}
		b.size += int64(next)
		data = data[next:]
		if !open.openOut && !open.openErr {
			complete, completeFrames = b.size, len(b.frames)
			if completeFrames > 0 {
				completeLength = len(b.frames[completeFrames-1].Data)
			}
		}
	}
	if complete > 0 && complete < b.size {
		b.size, b.frames = complete, b.frames[:completeFrames]
		if completeFrames > 0 {
			b.frames[completeFrames-1].Data = b.frames[completeFrames-1].Data[:completeLength]
		}
		open = lines{}
	}
	*l = open
	return b
}

// add appends a record's text to the frame of its stream, or begins a new frame.
func (b *batch) add(kind Kind, text []byte, full bool) {
	if len(b.frames) == 0 || b.frames[len(b.frames)-1].Kind != kind {
		b.frames = append(b.frames, Frame{Kind: kind})
	}
	last := &b.frames[len(b.frames)-1]
	last.Data = append(last.Data, text...)
	if full {
		last.Data = append(last.Data, '\n')
	}
}

// record parses a line of a log file. full reports whether its tag is F. ok reports
// whether the line is a record.
func record(line []byte) (kind Kind, text []byte, full, ok bool) {
	_, rest, found := bytes.Cut(line, space)
	stream, rest, found2 := bytes.Cut(rest, space)
	tag, text, found3 := bytes.Cut(rest, space)
	if !found || !found2 || !found3 || len(tag) == 0 {
		return 0, nil, false, false
	}
	switch string(stream) {
	case "stdout":
		kind = KindStdout
	case "stderr":
		kind = KindStderr
	default:
		return 0, nil, false, false
	}
	// Further tags may follow, separated by colons.
	return kind, text, tag[0] == 'F', true
}

var space = []byte(" ")
