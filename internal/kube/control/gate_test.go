package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		g := newGate(authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			asked++
			return authorizer.DecisionAllow, "", nil
		}))
		by := func(groups ...string) authorizer.Attributes {
			return authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "u", Groups: groups}}
		}
		if decision, _, err := g.Authorize(t.Context(), by(user.SystemPrivilegedGroup)); decision != authorizer.DecisionAllow || err != nil {
			t.Errorf("an administrator before the gate opens: %v, %v", decision, err)
		}
		bounded, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if decision, _, err := g.Authorize(bounded, by(user.NodesGroup)); decision == authorizer.DecisionAllow || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a node that gives up before the gate opens: %v, %v", decision, err)
		}
		if asked != 1 {
			t.Errorf("the authorizers were asked %d times before they could know", asked)
		}
		began := time.Now()
		time.AfterFunc(3*time.Second, func() { close(g.open); close(g.writable) })
		if decision, _, err := g.Authorize(t.Context(), by(user.NodesGroup)); decision != authorizer.DecisionAllow || err != nil {
			t.Errorf("a node that waits: %v, %v", decision, err)
		}
		if waited := time.Since(began); waited != 3*time.Second {
			t.Errorf("waited for %v", waited)
		}
	})
}
