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

// Changed for berth: the configuration is complete before containerd starts and never
// changes, so nothing watches it. A watch takes an instance of inotify, and containerd did
// not start again after its end if pods had taken all that the user may have.

package server

import (
	"sync"

	"github.com/containerd/go-cni"
	"github.com/containerd/log"
)

// cniNetConfSyncer holds the error of loading the CNI configuration.
type cniNetConfSyncer struct {
	err     error
	stopped chan struct{}
	once    sync.Once
}

// newCNINetConfSyncer loads the CNI configuration.
func newCNINetConfSyncer(_ string, netPlugin cni.CNI, loadOpts []cni.Opt) (*cniNetConfSyncer, error) {
	syncer := &cniNetConfSyncer{stopped: make(chan struct{})}
	if syncer.err = netPlugin.Load(loadOpts...); syncer.err != nil {
		log.L.WithError(syncer.err).Warn("failed to load cni during init, please check CRI plugin status before setting up network for pods")
	}
	return syncer, nil
}

// syncLoop waits for stop.
func (syncer *cniNetConfSyncer) syncLoop() error {
	<-syncer.stopped
	return nil
}

// lastStatus returns the error of loading the configuration.
func (syncer *cniNetConfSyncer) lastStatus() error { return syncer.err }

// stop ends syncLoop.
func (syncer *cniNetConfSyncer) stop() error {
	syncer.once.Do(func() { close(syncer.stopped) })
	return nil
}
