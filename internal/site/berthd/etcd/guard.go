package etcd

import (
	"context"
	"slices"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/auth"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"google.golang.org/grpc"
)

// guard refuses requests that etcd lets pass although its roles do not. etcd up to 3.6.8 does not
// check what a transaction inside of a transaction does (CVE-2026-33343), and lets everybody
// compact, raise alarms and list members (CVE-2026-33413).
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
		if err := checkTxn(server.AuthStore(), who, txn); err != nil {
			return nil, rpctypes.ErrGRPCPermissionDenied
		}
	}
	return handle(ctx, request)
}

// checkTxn checks a transaction with all transactions inside.
func checkTxn(roles auth.AuthStore, who *auth.AuthInfo, txn *etcdserverpb.TxnRequest) error {
	for _, c := range txn.Compare {
		if err := roles.IsRangePermitted(who, c.Key, c.RangeEnd); err != nil {
			return err
		}
	}
	for _, op := range slices.Concat(txn.Success, txn.Failure) {
		if err := checkOp(roles, who, op); err != nil {
			return err
		}
	}
	return nil
}

func checkOp(roles auth.AuthStore, who *auth.AuthInfo, op *etcdserverpb.RequestOp) error {
	if r := op.GetRequestRange(); r != nil {
		return roles.IsRangePermitted(who, r.Key, r.RangeEnd)
	}
	if r := op.GetRequestPut(); r != nil {
		if r.PrevKv {
			if err := roles.IsRangePermitted(who, r.Key, nil); err != nil {
				return err
			}
		}
		return roles.IsPutPermitted(who, r.Key)
	}
	if r := op.GetRequestDeleteRange(); r != nil {
		if r.PrevKv {
			if err := roles.IsRangePermitted(who, r.Key, r.RangeEnd); err != nil {
				return err
			}
		}
		return roles.IsDeleteRangePermitted(who, r.Key, r.RangeEnd)
	}
	if r := op.GetRequestTxn(); r != nil {
		return checkTxn(roles, who, r)
	}
	return auth.ErrPermissionDenied
}
