package etcd

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/auth"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/lease"
	"google.golang.org/grpc"
)

// guard refuses requests that etcd lets pass although its roles do not. etcd up to 3.6.8 does not
// check what a transaction inside of a transaction does (CVE-2026-33343), and lets everybody
// compact, raise alarms and list members (CVE-2026-33413). Up to 3.6.10 a Put in a transaction may
// return a value that its sender may not read, and attach a key to the lease of another
// (CVE-2026-44283).
type guard struct {
	server atomic.Pointer[etcdserver.EtcdServer]
}

// forNodes lists the requests without which berthd does not work. etcd checks them itself, except
// for inner transactions.
var forNodes = []string{
	"/etcdserverpb.KV/Range", "/etcdserverpb.KV/Put", "/etcdserverpb.KV/DeleteRange", "/etcdserverpb.KV/Txn",
	"/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Lease/LeaseRevoke", "/etcdserverpb.Lease/LeaseTimeToLive",
}

// check implements [grpc.UnaryServerInterceptor].
func (g *guard) check(ctx context.Context, request any, what *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	server := g.server.Load()
	if server == nil {
		return nil, rpctypes.ErrGRPCStopped
	}
	if !server.AuthStore().IsAuthEnabled() {
		return handle(ctx, request)
	}
	who, err := server.AuthInfoFromCtx(ctx)
	if err != nil {
		return nil, err
	}
	if who == nil {
		return nil, rpctypes.ErrGRPCUserEmpty
	}
	if err := server.AuthStore().IsAdminPermitted(who); err == nil {
		return handle(ctx, request)
	}
	if !slices.Contains(forNodes, what.FullMethod) {
		return nil, rpctypes.ErrGRPCPermissionDenied
	}
	if txn, isTxn := request.(*etcdserverpb.TxnRequest); isTxn {
		if err := (asker{ctx, server, who}).checkTxn(txn); err != nil {
			return nil, rpctypes.ErrGRPCPermissionDenied
		}
	}
	return handle(ctx, request)
}

// asker identifies the sender of a request.
type asker struct {
	ctx    context.Context
	server *etcdserver.EtcdServer
	who    *auth.AuthInfo
}

// checkTxn checks a transaction with all transactions inside.
func (a asker) checkTxn(txn *etcdserverpb.TxnRequest) error {
	for _, c := range txn.Compare {
		if err := a.mayRead(c.Key, c.RangeEnd); err != nil {
			return err
		}
	}
	for _, op := range slices.Concat(txn.Success, txn.Failure) {
		if err := a.checkOp(op); err != nil {
			return err
		}
	}
	return nil
}

func (a asker) checkOp(op *etcdserverpb.RequestOp) error {
	if r := op.GetRequestRange(); r != nil {
		return a.mayRead(r.Key, r.RangeEnd)
	}
	if r := op.GetRequestPut(); r != nil {
		return a.checkPut(r)
	}
	if r := op.GetRequestDeleteRange(); r != nil {
		if r.PrevKv {
			if err := a.mayRead(r.Key, r.RangeEnd); err != nil {
				return err
			}
		}
		return a.server.AuthStore().IsDeleteRangePermitted(a.who, r.Key, r.RangeEnd)
	}
	if r := op.GetRequestTxn(); r != nil {
		return a.checkTxn(r)
	}
	return auth.ErrPermissionDenied
}

func (a asker) checkPut(r *etcdserverpb.PutRequest) error {
	if r.PrevKv {
		if err := a.mayRead(r.Key, nil); err != nil {
			return err
		}
	}
	if err := a.server.AuthStore().IsPutPermitted(a.who, r.Key); err != nil || r.Lease == 0 {
		return err
	}
	// The owner of a lease could not revoke it if somebody else's key were attached.
	held, err := a.server.LeaseTimeToLive(a.ctx, &etcdserverpb.LeaseTimeToLiveRequest{ID: r.Lease, Keys: true})
	if errors.Is(err, lease.ErrLeaseNotFound) {
		return nil // etcd refuses the request
	}
	if err != nil {
		return err
	}
	for _, key := range held.Keys {
		if err := a.server.AuthStore().IsPutPermitted(a.who, key); err != nil {
			return err
		}
	}
	return nil
}

func (a asker) mayRead(key, end []byte) error {
	return a.server.AuthStore().IsRangePermitted(a.who, key, end)
}
