package berthd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/site/berthd/keys"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

const keysUsage = `usage: berthd keys VERB [--dir DIR] [--config FILE] [NODES...]

  make [--days N] NODES   write certificates to DIR: for the hosts of etcd, the administrator
                          and these nodes; repeated, it renews them
  grant NODES             make roles in etcd for these nodes
  enforce                 have etcd refuse everybody without a role
  relax                   undo enforce
  expel NODES             take the roles from these nodes

NODES are as Slurm writes them: n1 n[2-400].`

// keysDir is the default directory of the administrator's keys.
const keysDir = "/root/berth-keys"

// keysCommand runs 'berthd keys', which an administrator calls on one host.
func keysCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	if len(args) == 0 {
		return errors.New(keysUsage)
	}
	dir := flags.String("dir", keysDir, "the administrator's directory of keys")
	days := flags.Int("days", 365, "how long certificates are valid, for make")
	config, err := configOf(flags, args[1:])
	if err != nil {
		return err
	}
	var nodes []string
	for _, list := range flags.Args() {
		some, err := slurm.ExpandHosts(list)
		if err != nil {
			return fmt.Errorf("read the list of nodes: %w", err)
		}
		nodes = append(nodes, some...)
	}
	where := keys.Directory(*dir)
	verb := args[0]
	switch {
	case !slices.Contains([]string{"make", "grant", "enforce", "relax", "expel"}, verb):
		return errors.New(keysUsage)
	case (verb == "enforce" || verb == "relax") != (len(nodes) == 0):
		return errors.New(keysUsage)
	case verb == "make":
		return where.Make(config.Etcd, nodes, *days)
	}
	return asAdmin(ctx, config, where, func(ctx context.Context, client *clientv3.Client) error {
		switch verb {
		case "grant":
			return keys.Grant(ctx, client, nodes)
		case "enforce":
			return keys.Enforce(ctx, client)
		case "relax":
			return keys.Relax(ctx, client)
		default:
			for _, node := range nodes {
				if err := keys.Expel(ctx, client, node); err != nil {
					return err
				}
			}
			return nil
		}
	})
}

// asAdmin calls do with a connection to etcd that has the administrator's certificate.
func asAdmin(ctx context.Context, config siteconf.Config, where keys.Directory, do func(context.Context, *clientv3.Client) error) error {
	config.Etcd = where.Admin(config.Etcd)
	shared, err := store.Open(config)
	if err != nil {
		return err
	}
	defer shared.Close()
	if err := shared.Check(ctx); err != nil {
		return err
	}
	return do(ctx, shared.Client())
}
