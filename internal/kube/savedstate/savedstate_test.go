package savedstate

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func snapshot() Snapshot {
	return Snapshot{
		Facts: Facts{Kubernetes: "v1.36.3", Services: []string{"10.2.0.0/16"}}, Berth: "v1", Run: "job-1-0-7", Saved: time.Unix(1e9, 0),
		Records: []Record{{"pods/default/a", []byte("a pod")}, {"namespaces/x", nil}, {"secrets/default/s", []byte("open sesame")}},
	}
}

var key = bytes.Repeat([]byte{7}, keySize)

func dead(Owner) Life { return Dead }

func openFolder(t *testing.T, key []byte) *Folder {
	t.Helper()
	f, err := Open(filepath.Join(t.TempDir(), "state"), key, Owner{Job: "1"}, dead)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func keys(records []Record) string {
	var all []string
	for _, record := range records {
		all = append(all, record.Key+"="+string(record.Value))
	}
	return strings.Join(all, " ")
}

func TestSavedRecordsAreRead(t *testing.T) {
	f := openFolder(t, key)
	if _, ok, err := f.Load(); ok || err != nil {
		t.Fatalf("an empty folder has a state: %v", err)
	}
	if err := f.Save(snapshot()); err != nil {
		t.Fatal(err)
	}
	got, ok, err := f.Load()
	if err != nil || !ok {
		t.Fatalf("load: %v, %v", ok, err)
	}
	if want := snapshot(); keys(got.Records) != keys(want.Records) || got.Run != want.Run || got.Facts.Services[0] != want.Facts.Services[0] || got.Missing != 0 {
		t.Errorf("%+v, want %+v", got, want)
	}
	for path, want := range map[string]os.FileMode{f.path: 0o700, filepath.Join(f.path, fileName): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("mode of %s is %v, want %v (%v)", path, info.Mode(), want, err)
		}
	}
	content, err := os.ReadFile(filepath.Join(f.path, fileName))
	if err != nil || bytes.Contains(content, []byte("sesame")) {
		t.Errorf("a Secret can be read (%v)", err)
	}
	if left, err := os.ReadDir(f.path); err != nil || len(left) != 2 {
		t.Errorf("the folder holds %v, want the state and the claim (%v)", left, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(f.path); err != nil || len(left) != 1 {
		t.Errorf("the folder holds %v at the end, want the state (%v)", left, err)
	}
}

func TestSecretsAreLeftOut(t *testing.T) {
	for name, keys := range map[string][2][]byte{"when saved": {nil, key}, "when restored": {key, nil}} {
		t.Run(name, func(t *testing.T) {
			file, err := encode(snapshot(), keys[0])
			if err != nil {
				t.Fatal(err)
			}
			got, err := decode(file, keys[1])
			if err != nil || got.Missing != 1 || len(got.Records) != 2 {
				t.Errorf("%d records, %d missing, %v", len(got.Records), got.Missing, err)
			}
		})
	}
}

// Every changed byte and every truncation is detected.
// What a cluster needs to continue contains keys, and is no Secret of the user.
func TestKeysOfTheClusterAreSealed(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	snapshot := Snapshot{Records: []Record{{ClusterKey, []byte("private words")}, {"pods/a", []byte("public words")}}}
	file, err := encode(snapshot, key)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := decode(file, nil)
	if err != nil || len(plain.Records) != 1 || plain.Missing != 0 {
		t.Errorf("without the key: %d records, %d missing (%v)", len(plain.Records), plain.Missing, err)
	}
	all, err := decode(file, key)
	if err != nil || len(all.Records) != 2 || string(all.Records[1].Value) != "private words" {
		t.Errorf("with the key: %v (%v)", all.Records, err)
	}
	if file, err = encode(snapshot, nil); err != nil || bytes.Contains(file, []byte("private words")) {
		t.Errorf("a file without Secrets contains the keys (%v)", err)
	}
}

func TestDamageIsFound(t *testing.T) {
	file, err := encode(snapshot(), key)
	if err != nil {
		t.Fatal(err)
	}
	for i := range file {
		damaged := bytes.Clone(file)
		damaged[i] ^= 0x20
		if _, err := decode(damaged, key); !errors.Is(err, errDamaged) && !errors.Is(err, errNewer) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		if _, err := decode(file[:i], key); !errors.Is(err, errDamaged) {
			t.Errorf("cut after %d bytes: %v", i, err)
		}
	}
	if _, err := decode(append(bytes.Clone(file), 0), key); !errors.Is(err, errDamaged) {
		t.Errorf("one byte more: %v", err)
	}
	if _, err := decode(file, bytes.Repeat([]byte{8}, keySize)); !errors.Is(err, errForeignKey) {
		t.Errorf("another key: %v", err)
	}
	newer := bytes.Replace(file, []byte(`"Format":1`), []byte(`"Format":2`), 1)
	if _, err := decode(newer, key); !errors.Is(err, errNewer) {
		t.Errorf("a newer format: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	file, err := encode(snapshot(), key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzbound.Watch(t)
		_, _ = decode(data, key)
		_, _, _ = Read(bytes.NewReader(data))
	})
}

// FuzzRecords decodes a file with correct lengths and a correct checksum.
func FuzzRecords(f *testing.F) {
	var records bytes.Buffer
	if err := Write(&records, Facts{Kubernetes: "v1"}, snapshot().Records); err != nil {
		f.Fatal(err)
	}
	f.Add(records.Bytes(), "v1")
	f.Add([]byte("{}\n\xff\xff\xff\x07a"), "")
	f.Fuzz(func(t *testing.T, text []byte, version string) {
		fuzzbound.Watch(t)
		var packed bytes.Buffer
		compressor, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
		if err == nil {
			_, err = compressor.Write(text)
		}
		if err = errors.Join(err, compressor.Close()); err != nil {
			t.Fatal(err)
		}
		line, err := json.Marshal(header{Format: format, Berth: version, Plain: packed.Len()})
		if err != nil {
			t.Fatal(err)
		}
		file := append(append([]byte(magic), line...), '\n')
		file = append(file, packed.Bytes()...)
		sum := sha256.Sum256(file)
		got, err := decode(append(file, sum[:]...), key)
		_, want, problem := Read(bytes.NewReader(text))
		if (err == nil) != (problem == nil) || len(got.Records) != len(want) {
			t.Errorf("%d records, %v; read without a file: %d, %v", len(got.Records), err, len(want), problem)
		}
	})
}

// A line of facts without an end takes no more memory than a long one.
func TestEndlessFactsAreRefused(t *testing.T) {
	facts := bytes.Repeat([]byte{' '}, 64<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := Read(bytes.NewReader(facts))
	runtime.ReadMemStats(&after)
	if err == nil {
		t.Error("they are read")
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 8*largestFacts {
		t.Errorf("%d bytes are allocated", allocated)
	}
}

func TestFilesAccessibleToOthersAreRefused(t *testing.T) {
	f := openFolder(t, key)
	if err := f.Save(snapshot()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(f.path, fileName)
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.Load(); err == nil || !strings.Contains(err.Error(), "chmod go-rwx") {
			t.Errorf("a file of mode %v: %v", mode, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Load(); err == nil {
		t.Error("a link is followed")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(f.path, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(f.path, key, Owner{Job: "2"}, dead); err == nil || !strings.Contains(err.Error(), "chmod go-rwx") {
		t.Errorf("a folder of mode 0750: %v", err)
	}
	if os.Getuid() == 0 {
		if err := errors.Join(os.Chmod(f.path, 0o700), os.Chown(f.path, 1, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(f.path, key, Owner{Job: "2"}, dead); err == nil || !strings.Contains(err.Error(), "belongs to user 1") {
			t.Errorf("somebody else's folder: %v", err)
		}
	}
}

func TestOneRunOwnsFolder(t *testing.T) {
	path := t.TempDir()
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	lives := map[string]Life{}
	life := func(o Owner) Life { return lives[o.Job] }
	first, err := Open(path, key, Owner{Job: "1"}, life)
	if err != nil {
		t.Fatal(err)
	}
	lives["1"] = Alive
	if _, err := Open(path, key, Owner{Job: "2"}, life); err == nil || !strings.Contains(err.Error(), "job 1 is using it") {
		t.Errorf("a second run: %v", err)
	}
	lives["1"] = Unknown
	if _, err := Open(path, key, Owner{Job: "2"}, life); err == nil || !strings.Contains(err.Error(), "may still run") {
		t.Errorf("a second run, of which nobody knows: %v", err)
	}
	old := time.Now().Add(-silence - time.Minute)
	if err := os.Chtimes(first.claim.file(""), old, old); err != nil {
		t.Fatal(err)
	}
	if err := first.Renew(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, key, Owner{Job: "2"}, life); err == nil {
		t.Error("a claim that was renewed is taken for an old one")
	}
	if err := os.Chtimes(first.claim.file(""), old, old); err != nil {
		t.Fatal(err)
	}
	second, err := Open(path, key, Owner{Job: "2"}, life)
	if err != nil {
		t.Fatalf("after a long silence: %v", err)
	}
	// The first run was not dead.
	if err := second.Save(snapshot()); err != nil {
		t.Fatal(err)
	}
	other := snapshot()
	other.Run = "late"
	if err := first.Save(other); !errors.Is(err, errTaken) {
		t.Errorf("the first run saves: %v", err)
	}
	if err := first.Renew(); !errors.Is(err, errTaken) {
		t.Errorf("the first run renews: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if s, ok, err := second.Load(); err != nil || !ok || s.Run != snapshot().Run {
		t.Errorf("what the second run saved: %+v, %v, %v", s, ok, err)
	}
	if err := second.Save(snapshot()); err != nil {
		t.Errorf("the second run saves: %v", err)
	}
}

func TestOnlyOneRunGetsFolder(t *testing.T) {
	path := t.TempDir()
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, key, Owner{Job: "stale"}, dead); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	won := make(chan string, 32)
	for i := range 32 {
		all.Go(func() {
			job := fmt.Sprint("job", i)
			_, err := Open(path, key, Owner{Job: job}, func(o Owner) Life {
				if o.Job == "stale" {
					return Dead
				}
				return Alive
			})
			if err == nil {
				won <- job
			}
		})
	}
	all.Wait()
	if len(won) != 1 {
		t.Errorf("%d runs have the folder", len(won))
	}
}

func TestKeyIsMadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "state.key")
	var all sync.WaitGroup
	made := make(chan string, 8)
	for range 8 {
		all.Go(func() {
			key, err := Key(path)
			if err != nil {
				t.Error(err)
			}
			made <- string(key)
		})
	}
	all.Wait()
	close(made)
	first := <-made
	for key := range made {
		if key != first || len(key) != keySize {
			t.Errorf("another key: %x, not %x", key, first)
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Key(path); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("a key that others can read: %v", err)
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte("nonsense"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Key(path); err == nil || !strings.Contains(err.Error(), "is not a key that berth made") {
		t.Errorf("no key: %v", err)
	}
}
