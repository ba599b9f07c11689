/*
   Copyright The containerd Authors.

   Licensed under the Apache License, Version 2.0 (the "License");
   you may not use this file except in compliance with the License.
   You may obtain a copy of the License at

       http://www.apache.org/licenses/LICENSE-2.0

   Unless required by applicable law or agreed to in writing, software
   distributed under the License is distributed on an "AS IS" BASIS,
   WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
   See the License for the specific language governing permissions and
   limitations under the License.
*/

// Changed for berth: the loop that wrote each line with a system call is in
// berth.dev/berth/runtime/crilog, which writes many lines with one.

package io

import (
	"io"
	"os"

	cioutil "github.com/containerd/containerd/v2/pkg/ioutil"
	"github.com/containerd/log"

	"berth.dev/berth/runtime/crilog"
)

// NewDiscardLogger creates logger which discards all the input.
func NewDiscardLogger() io.WriteCloser {
	return cioutil.NewNopWriteCloser(io.Discard)
}

// NewCRILogger returns a write closer which redirect container log into
// log file, and decorate the log line into CRI defined format. It also
// returns a channel which indicates whether the logger is stopped.
// maxLen is the max length limit of a line. A line longer than the
// limit will be cut into multiple lines.
func NewCRILogger(path string, w io.Writer, stream StreamType, maxLen int) (io.WriteCloser, <-chan struct{}) {
	log.L.Debugf("Start writing stream %q to log file %q", stream, path)
	unwritten := crilog.NewCount(os.Getenv(crilog.CountsEnv), path)
	logger := crilog.New(w, string(stream), maxLen, crilog.Events{
		Read: func(entries, bytes int) {
			inputEntries.Inc(float64(entries))
			inputBytes.Inc(float64(bytes))
		},
		Wrote: func(records, bytes int) {
			outputEntries.Inc(float64(records))
			outputBytes.Inc(float64(bytes))
		},
		Split: func(records int) { splitEntries.Inc(float64(records)) },
		Failed: func(err error, lost int) {
			log.L.WithError(err).Errorf("Fail to write %q log to log file %q", stream, path)
			if err := unwritten.Add(lost); err != nil {
				log.L.WithError(err).Errorf("Fail to count %d lost bytes of log file %q", lost, path)
			}
		},
	})
	return logger, logger.Done()
}
