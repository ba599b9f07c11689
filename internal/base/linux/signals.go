package linux

import (
	"os"
	"os/signal"
)

// NotifyUnlessIgnored relays the signals that this process does not ignore. Its
// parent may have made it ignore some, as nohup does, or a shell for background
// commands.
func NotifyUnlessIgnored(channel chan<- os.Signal, signals ...os.Signal) {
	for _, each := range signals {
		if !signal.Ignored(each) {
			signal.Notify(channel, each)
		}
	}
}
