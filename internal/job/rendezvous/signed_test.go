package rendezvous

import (
	"context"
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// keyring holds the key pairs of a step's nodes.
type keyring map[string]ed25519.PrivateKey

func newKeyring(t *testing.T, nodes ...string) keyring {
	t.Helper()
	keys := keyring{}
	for _, node := range nodes {
		_, private, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		keys[node] = private
	}
	return keys
}

func (k keyring) public(node string) ed25519.PublicKey {
	return k[node].Public().(ed25519.PublicKey)
}

func (k keyring) find(_ context.Context, node string) (ed25519.PublicKey, error) {
	if _, known := k[node]; !known {
		return nil, errors.New("there is no such node")
	}
	return k.public(node), nil
}

func TestNodesMeetByTheirKeys(t *testing.T) {
	of := fixture(t, "n1", "n2", "n3")
	keys := newKeyring(t, "n1", "n2", "n3")
	with := func(node string) Config {
		cfg := of(node)
		cfg.Prover = NewSigned(keys[node], keys.find)
		return cfg
	}
	head := startHead(t, with("n1"))
	for _, node := range []string{"n2", "n3"} {
		worker := startWorker(t, with(node))
		if peer := accepted(t, head); peer.Name() != node {
			t.Errorf("%s came, want %s", peer.Name(), node)
		}
		worker.Close("test is over")
	}
}

func TestNodeCannotImpersonateAnother(t *testing.T) {
	of := fixture(t, "n1", "n2", "n3")
	keys := newKeyring(t, "n1", "n2", "n3")
	cfg := of("n1")
	cfg.Prover = NewSigned(keys["n1"], keys.find)
	startHead(t, cfg)
	// n3 has a key of the step, but claims to be n2.
	cfg = of("n2")
	cfg.Prover = NewSigned(keys["n3"], keys.find)
	wantRefused(t, cfg, `not made with the key of node "n2"`)
	// A head must have the key of its node.
	cfg = of("n2")
	cfg.Prover = NewSigned(keys["n2"], newKeyring(t, "n1").find)
	wantWords(t, refusedWorker(t, cfg, "not made with the key"), "did not prove to be the head", `not made with the key of node "n1"`)
}

func TestSignedCredentials(t *testing.T) {
	keys := newKeyring(t, "n1", "n2")
	prover := NewSigned(keys["n1"], keys.find)
	credential, err := prover.Prove(t.Context(), Claim{Node: "n1", Role: RoleHead})
	if err != nil {
		t.Fatal(err)
	}
	if claim, err := prover.Verify(t.Context(), credential); err != nil || claim.Node != "n1" || claim.Role != RoleHead {
		t.Errorf("%v, %v, want the claim of n1", claim, err)
	}
	unknown, err := prover.Prove(t.Context(), Claim{Node: "n9"})
	if err != nil {
		t.Fatal(err)
	}
	changed := append([]byte(nil), credential...)
	changed[len(changed)-3] ^= 1
	for words, wrong := range map[string][]byte{
		"no signature":          credential[:10],
		"read the claim":        credential[:ed25519.SignatureSize],
		"there is no such node": unknown,
		"credential":            changed,
	} {
		_, err := prover.Verify(t.Context(), wrong)
		wantWords(t, err, words)
	}
}

// The source of a key is gone when its node returns.
func TestProvenKeyIsKept(t *testing.T) {
	keys := newKeyring(t, "n1")
	gone := false
	prover := NewSigned(keys["n1"], func(ctx context.Context, node string) (ed25519.PublicKey, error) {
		if gone {
			return nil, errors.New("gone")
		}
		return keys.find(ctx, node)
	})
	credential, err := prover.Prove(t.Context(), Claim{Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := prover.Verify(t.Context(), credential); err != nil {
			t.Error(err)
		}
		gone = true
	}
}

func openFolder(t *testing.T, path string, step Step) *Folder {
	t.Helper()
	folder, err := OpenFolder(path, step)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { folder.Close() })
	return folder
}

func TestFolderForwardsKeys(t *testing.T) {
	keys, path, step := newKeyring(t, "n1", "n2"), t.TempDir(), Step{Cluster: "c", Job: "7"}
	head, worker := openFolder(t, path, step), openFolder(t, path, step)
	other := openFolder(t, path, Step{Cluster: "c", Job: "8"})
	found := make(chan error, 1)
	go func() {
		key, err := worker.Key(t.Context(), "n1")
		if err == nil && !key.Equal(keys.public("n1")) {
			err = errors.New("another key")
		}
		found <- err
	}()
	if err := head.Publish("n1", keys.public("n1")); err != nil {
		t.Fatal(err)
	}
	if err := <-found; err != nil {
		t.Error(err)
	}
	if _, err := other.Key(within(t, folderPoll), "n1"); err == nil {
		t.Error("another step has found the key")
	}
	worker.Withdraw("n2")
	other.Withdraw("n1")
	if err := head.Clear(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(path); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func TestForeignFolderIsRefused(t *testing.T) {
	keys, step := newKeyring(t, "n1"), Step{Job: "7"}
	parent := t.TempDir()
	open := filepath.Join(parent, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o770); err != nil {
		t.Fatal(err)
	}
	_, err := OpenFolder(open, step)
	wantWords(t, err, "others may write", "chmod go-w")
	_, err = OpenFolder("/proc/1", step)
	wantWords(t, err, "/proc/1")
	_, err = OpenFolder(filepath.Join(parent, "none"), step)
	wantWords(t, err, "no such file")

	// A key is also refused if it is a link, or if another user could write it.
	folder := openFolder(t, parent, step)
	if err := folder.Publish("n1", keys.public("n1")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("n1", filepath.Join(parent, folder.file("n2"))); err != nil {
		t.Fatal(err)
	}
	_, err = folder.Key(t.Context(), "n2")
	wantWords(t, err, "is a link")
	if err := os.Chmod(filepath.Join(parent, folder.file("n1")), 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = folder.Key(t.Context(), "n1")
	wantWords(t, err, "others may write")
	if err := os.WriteFile(filepath.Join(parent, folder.file("n3")), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = folder.Key(t.Context(), "n3")
	wantWords(t, err, "5 bytes")
}
