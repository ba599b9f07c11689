package layers

import (
	"encoding/json"
	"net"
	"os"
	"testing"

	"berth.dev/berth/internal/base/linux"
)

// live starts one life of the role. It returns the role's end, and a function that
// ends the life.
func live(t *testing.T, l *Layers) (role *net.UnixConn, end func()) {
	t.Helper()
	conn, file, err := linux.PacketPair("holder")
	if err != nil {
		t.Fatal(err)
	}
	if role, err = linux.PacketConn(file); err != nil {
		t.Fatal(err)
	}
	file.Close()
	done := make(chan struct{})
	l.setAlive(true)
	go func() { defer close(done); l.keep(conn) }()
	return role, func() {
		role.Close()
		<-done
		l.setAlive(false)
	}
}

func receive(t *testing.T, role *net.UnixConn) (keptMessage, int) {
	t.Helper()
	var message keptMessage
	files, err := linux.ReceivePacket(role, &message)
	if err != nil {
		t.Fatal(err)
	}
	linux.CloseAll(files)
	return message, len(files)
}

func TestMountsOutliveRole(t *testing.T) {
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	role, end := live(t, l)
	if message, files := receive(t, role); message.ID != "" || files != 0 {
		t.Errorf("the first life gets %+v with %d descriptors", message, files)
	}
	for _, message := range []keptMessage{{ID: "a", Data: json.RawMessage(`1`)}, {ID: "b", Data: json.RawMessage(`2`)}} {
		if err := linux.SendPacket(role, message, null); err != nil {
			t.Fatal(err)
		}
	}
	if err := linux.SendPacket(role, keptMessage{ID: "a"}); err != nil { // forget it
		t.Fatal(err)
	}
	end()
	role, end = live(t, l)
	if message, files := receive(t, role); message.ID != "b" || string(message.Data) != "2" || files != 1 {
		t.Errorf("the second life gets %+v with %d descriptors", message, files)
	}
	if message, files := receive(t, role); message.ID != "" || files != 0 {
		t.Errorf("the list ends with %+v and %d descriptors", message, files)
	}
	l.abandonIfDead()
	if len(l.kept) != 1 {
		t.Error("mounts are abandoned although the role lives")
	}
	end()
	l.abandonIfDead()
	if len(l.kept) != 0 {
		t.Error("mounts of a role that has ended for good are held")
	}
}
