package control

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// gate is an authorizer that waits until the caches are filled. The authorizers answer
// from caches, and an empty cache allows nothing, so the server would
// refuse permitted requests of a kubelet in the first 100 ms. client-go and the kubelet
// would then back off for seconds. A delayed request ends with its own context, after a
// minute at most.
//
// The gate does not delay members of system:masters, who have all permissions. One of
// them is the process's own client, which fills the caches.
//
// Writes wait a little longer than reads, until the admission plugins are ready; see
// admissionPlugins.
type gate struct {
	authorizer.Authorizer
	open     chan struct{} // closed when reads pass
	writable chan struct{} // closed when writes pass
}

func newGate(behind authorizer.Authorizer) *gate {
	return &gate{Authorizer: behind, open: make(chan struct{}), writable: make(chan struct{})}
}

func (g *gate) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	ready := g.writable
	if a.IsReadOnly() {
		ready = g.open
	}
	if err := pass(ctx, ready, a.GetUser()); err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	return g.Authorizer.Authorize(ctx, a)
}

func pass(ctx context.Context, ready <-chan struct{}, u user.Info) error {
	select {
	case <-ready:
		return nil
	default:
	}
	if u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the authorizers: %w", context.Cause(ctx))
	}
}

// gatedRules delays the requests for all rules of a user. SelfSubjectRulesReviews and the
// checks against privilege escalation make such requests.
type gatedRules struct {
	authorizer.RuleResolver
	gate *gate
}

func (r gatedRules) RulesFor(ctx context.Context, u user.Info, namespace string) (
	[]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error,
) {
	if err := pass(ctx, r.gate.open, u); err != nil {
		return nil, nil, true, err
	}
	return r.RuleResolver.RulesFor(ctx, u, namespace)
}

// openWhenSynced opens the gate for reads once the caches of both authorizers,
// RBAC and Node, are filled. It opens the gate for writes once the plugins are
// ready, and then returns true. It returns false if ctx ends before. The informers must
// have been requested before.
func (g *gate) openWhenSynced(ctx context.Context, shared informers.SharedInformerFactory, plugins *admissionPlugins) bool {
	synced := cache.WaitFor(ctx, "",
		shared.Rbac().V1().Roles().Informer().HasSyncedChecker(),
		shared.Rbac().V1().RoleBindings().Informer().HasSyncedChecker(),
		shared.Rbac().V1().ClusterRoles().Informer().HasSyncedChecker(),
		shared.Rbac().V1().ClusterRoleBindings().Informer().HasSyncedChecker(),
		shared.Core().V1().Nodes().Informer().HasSyncedChecker(),
		shared.Core().V1().Pods().Informer().HasSyncedChecker(),
		shared.Core().V1().PersistentVolumes().Informer().HasSyncedChecker(),
		shared.Storage().V1().VolumeAttachments().Informer().HasSyncedChecker(),
	)
	if !synced {
		return false
	}
	close(g.open)
	if !plugins.wait(ctx) {
		return false
	}
	close(g.writable)
	return true
}
