package keys

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/berthd/store"
)

const (
	// MemberName is the common name in certificates of etcd's members. etcd has no user of that
	// name, so these certificates give no rights to clients.
	MemberName = "berth-etcd"
	// adminUser and adminRole are etcd's own.
	adminUser, adminRole = "root", "root"
	// sharedRole has the permissions that all nodes need.
	sharedRole = "berth-nodes"
)

// userOf returns etcd's user for a node, which is also the common name of its certificate, and the
// name of its role. The prefix keeps a node named root from becoming etcd's administrator.
func userOf(node string) string { return "node:" + node }

// Grant makes the user and the role of each node. Permissions that a former version of berthd
// granted and that are not needed any more are withdrawn.
func Grant(ctx context.Context, client *clientv3.Client, nodes []string) error {
	if err := role(ctx, client, sharedRole, store.Shared()); err != nil {
		return err
	}
	for _, node := range nodes {
		user := userOf(node)
		if err := role(ctx, client, user, store.Own(node)); err != nil {
			return err
		}
		if err := passwordless(ctx, client, user, sharedRole, user); err != nil {
			return err
		}
	}
	return nil
}

// Enforce makes etcd refuse everybody without a role. Only the administrator can withdraw that.
func Enforce(ctx context.Context, client *clientv3.Client) error {
	if _, err := client.RoleAdd(ctx, adminRole); err != nil && !errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
		return fmt.Errorf("make etcd's role root: %w", err)
	}
	if err := passwordless(ctx, client, adminUser, adminRole); err != nil {
		return err
	}
	if _, err := client.AuthEnable(ctx); err != nil {
		return fmt.Errorf("have etcd enforce roles: %w", err)
	}
	return nil
}

// Relax undoes Enforce. The roles stay.
func Relax(ctx context.Context, client *clientv3.Client) error {
	if _, err := client.AuthDisable(ctx); err != nil {
		return fmt.Errorf("have etcd ignore roles: %w", err)
	}
	return nil
}

// Expel removes the user and the role of a node, and its registration.
func Expel(ctx context.Context, client *clientv3.Client, node string) error {
	user := userOf(node)
	if _, err := client.UserDelete(ctx, user); err != nil && !errors.Is(err, rpctypes.ErrUserNotFound) {
		return fmt.Errorf("remove user %s of etcd: %w", user, err)
	}
	if _, err := client.RoleDelete(ctx, user); err != nil && !errors.Is(err, rpctypes.ErrRoleNotFound) {
		return fmt.Errorf("remove role %s of etcd: %w", user, err)
	}
	for _, p := range store.Own(node) {
		if _, err := client.Delete(ctx, p.Key); err != nil {
			return fmt.Errorf("remove what node %s has registered in etcd: %w", node, err)
		}
	}
	return nil
}

// passwordless makes a user of etcd that is known by its certificate only, with these roles.
func passwordless(ctx context.Context, client *clientv3.Client, user string, roles ...string) error {
	_, err := client.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
	if err != nil && !errors.Is(err, rpctypes.ErrUserAlreadyExist) {
		return fmt.Errorf("make user %s of etcd: %w", user, err)
	}
	for _, role := range roles {
		// etcd accepts a role that the user has already.
		if _, err := client.UserGrantRole(ctx, user, role); err != nil {
			return fmt.Errorf("give user %s of etcd the role %s: %w", user, role, err)
		}
	}
	return nil
}

// role makes a role with exactly these permissions.
func role(ctx context.Context, client *clientv3.Client, name string, wanted []store.Permission) error {
	fail := func(err error) error { return fmt.Errorf("make role %s of etcd: %w", name, err) }
	if _, err := client.RoleAdd(ctx, name); err != nil && !errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
		return fail(err)
	}
	current, err := client.RoleGet(ctx, name)
	if err != nil {
		return fail(err)
	}
	granted := map[store.Permission]bool{}
	for _, p := range current.Perm {
		granted[store.Permission{Key: string(p.Key), End: string(p.RangeEnd), Write: p.PermType != clientv3.PermRead}] = true
	}
	for _, p := range wanted {
		if granted[p] {
			delete(granted, p)
			continue
		}
		// A permission for the same keys is replaced.
		delete(granted, store.Permission{Key: p.Key, End: p.End, Write: !p.Write})
		kind := clientv3.PermissionType(clientv3.PermRead)
		if p.Write {
			kind = clientv3.PermissionType(clientv3.PermReadWrite)
		}
		if _, err := client.RoleGrantPermission(ctx, name, p.Key, p.End, kind); err != nil {
			return fail(err)
		}
	}
	for p := range granted {
		if _, err := client.RoleRevokePermission(ctx, name, p.Key, p.End); err != nil {
			return fail(err)
		}
	}
	return nil
}
