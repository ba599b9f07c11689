package notify

import (
	"context"
	"errors"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
)

func TestEventsArriveInOrder(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd, err := syscall.Dup(int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	w.Close()

	n := New(fd)
	n.Phase("etcd")
	n.Ready()
	n.Fatal(errors.New("bind port 6443: address in use\nsecond line"))
	n.Yield(errors.New("lease lost"))
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
	if errno != 0 || flags&syscall.FD_CLOEXEC == 0 {
		t.Errorf("descriptor would be inherited by children: flags %#x, %v", flags, errno)
	}
	n.w.(*os.File).Close()

	var got []Event
	if err := Read(r, func(e Event) { got = append(got, e) }); err != nil {
		t.Fatal(err)
	}
	want := []Event{
		{Event: KindPhase, Name: "etcd"},
		{Event: KindReady},
		{Event: KindFatal, Error: "bind port 6443: address in use\nsecond line"},
		{Event: KindYield, Error: "lease lost"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestNoListenerAtHead(t *testing.T) {
	New(-1).Ready()
	var none *Notifier
	none.Phase("x")
}

func TestReadRejectsOtherText(t *testing.T) {
	err := Read(strings.NewReader("{\"event\":\"ready\"}\npanic: x\n"), func(Event) {})
	if err == nil || !strings.Contains(err.Error(), "panic: x") {
		t.Errorf("got %v", err)
	}
}

func TestAliveFollowsTheProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beats, probes atomic.Int32
		n := NewWriter(writerFunc(func(p []byte) {
			if string(p) != "{\"event\":\"alive\"}\n" {
				t.Errorf("wrote %q", p)
			}
			beats.Add(1)
		}))
		ctx, cancel := context.WithTimeout(t.Context(), 6*period+period/2)
		defer cancel()
		n.Alive(ctx, func(ctx context.Context) error {
			switch probes.Add(1) {
			case 2:
				return errors.New("not well")
			case 4: // hangs until its bound
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		if beats.Load() != 4 || probes.Load() != 6 {
			t.Errorf("%d heartbeats of %d probes, want 4 of 6", beats.Load(), probes.Load())
		}
	})
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }
