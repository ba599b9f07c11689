package berthd

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"berth.dev/berth/internal/site/berthd/gateway"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

// daemon is berthd on one node. It connects the parts, and each part guards its own state.
//
// Mutexes are taken in this order: that of a user's sessions, network.applying, pods.mu, and
// last that of any other part. A part may hold its mutex while it calls a part below it. Only
// sessions holds one while it calls a function that it was given.
type daemon struct {
	config siteconf.Config
	// node is Slurm's name of this node, and host its address.
	node     string
	host     netip.Addr
	store    *store.Store
	audit    *audit
	metrics  *metrics
	gateways *gateway.Gateways
	optOuts  *optOuts
	sessions *sessions
	server   *server
	// jobNames keeps the names of jobs here, and runs the names of their runs.
	jobNames  *jobNames
	runs      *namedRuns
	watch     *watch
	pods      *pods
	network   *network
	refusals  *refusals
	collector *collector
	service   *service
	log       *slog.Logger

	// lastWords bounds how long the end of a job waits for the last packets of its connections.
	lastWords time.Duration
	// background counts the goroutines that run waits for at the end.
	background sync.WaitGroup
}

// relist makes all followers, also of gateways, list everything again.
func (d *daemon) relist() {
	d.gateways.Relist()
	d.watch.relist()
}
