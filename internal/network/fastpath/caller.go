package fastpath

import (
	"bytes"
	"errors"
	"math"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// trap is a call that waits for its answer.
type trap struct {
	s      *shared
	from   *container
	record *record
	thread int // a pidfd of the caller
	socket int // a duplicate of the caller's socket until the call is answered, or 0
}

// exclude waits until the work on earlier calls of the same thread has ended. A signal
// can interrupt and restart a call while its answer is written into the caller's
// memory. If the second call were answered before that has ended, the thread could
// already use this memory for something else.
func (t *trap) exclude() (done func()) {
	lock := &t.s.threads[t.call().Thread%uint32(len(t.s.threads))]
	lock.Lock()
	return lock.Unlock
}

func (t *trap) call() *linux.Notification { return &t.record.call }

func (t *trap) argument(i int) int { return int(int32(t.call().Args[i])) }

func (t *trap) tid() int { return int(t.call().Thread) }

// waits reports whether the call still waits. If it does not, earlier look-ups by thread ID
// may have concerned another thread.
func (t *trap) waits() bool { return linux.NotificationWaits(t.from.fd, t.call().ID) }

// proceed counts the reason why, and lets the kernel perform the call on the pod's own
// socket.
func (t *trap) proceed(why count) {
	t.s.counters.add(why)
	t.pass()
}

// pass lets the kernel perform the call.
func (t *trap) pass() {
	t.release()
	_ = linux.ContinueNotification(t.from.fd, t.call().ID)
	t.done()
}

// answer replies to the caller and reports whether it was still waiting.
func (t *trap) answer(value int64, errno unix.Errno) bool {
	t.release()
	err := linux.AnswerNotification(t.from.fd, t.call().ID, value, errno)
	t.done()
	return err == nil
}

// refuse counts the reason why, and answers with an error.
func (t *trap) refuse(why count, errno unix.Errno) {
	t.s.counters.add(why)
	t.answer(0, errno)
}

// release closes the duplicate of the caller's socket. It must not outlive the call: a
// caller that closes the socket next may bind its port again at once.
func (t *trap) release() {
	if t.socket > 0 {
		unix.Close(t.socket)
		t.socket = 0
	}
}

// done releases a call that was answered or has been interrupted.
func (t *trap) done() {
	t.release()
	if t.thread >= 0 {
		unix.Close(t.thread)
		t.thread = -1
	}
	t.call().ID = 0
	t.s.state.put(t.record)
}

// forget resets a connection that was accepted for the caller. It clears the record
// first, because the next descriptor may get the same number.
func (t *trap) forget(connection int) {
	t.record.note(stageBegun, 0)
	sock.Reset(connection)
}

// open opens a pidfd of the calling thread.
func (t *trap) open() (err error) {
	if t.thread >= 0 {
		return nil
	}
	t.thread, err = linux.OpenThread(t.tid())
	return err
}

// fetch returns a duplicate of the caller's descriptor, which is closed when the call is
// answered. If fetch returns false, it has answered the call.
func (t *trap) fetch(fd int) (socket int, ok bool) {
	err := t.open()
	if err == nil {
		socket, err = unix.PidfdGetfd(t.thread, fd, 0)
	}
	switch {
	case err == nil:
		t.release()
		t.socket = socket
		return socket, true
	case errors.Is(err, unix.EBADF):
		t.answer(0, unix.EBADF)
	case !t.waits():
		t.cancelled()
	case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE):
		t.refuse(countUnseen, unix.ENOBUFS)
	default:
		// The socket may be switched, so the kernel must not perform the call.
		t.refuse(countUnseen, unix.EPERM)
	}
	return -1, false
}

// cancelled releases a call that was interrupted.
func (t *trap) cancelled() {
	t.s.counters.add(countCancelled)
	t.done()
}

// maxDescriptors is the largest number of descriptors to search in a process.
const maxDescriptors = 1024

// descriptorUse describes what else refers to a socket of the caller.
type descriptorUse struct {
	duplicated bool  // another descriptor refers to the socket
	crowded    bool  // the process has too many descriptors to search
	unseen     bool  // the process's descriptors cannot be listed
	epolls     []int // descriptors of epoll instances that watch the socket
}

// usesOf finds other descriptors of the caller's socket, and the epoll instances that
// watch it.
func (t *trap) usesOf(fd int) (e descriptorUse) {
	descriptors, err := listDescriptors(t.tid(), maxDescriptors)
	if err != nil || len(descriptors) > maxDescriptors {
		return descriptorUse{unseen: err != nil, crowded: err == nil}
	}
	for _, other := range descriptors {
		switch {
		case other == fd:
		case linux.SameFile(t.tid(), fd, t.tid(), other):
			e.duplicated = true
			return e
		case linux.InEpoll(t.tid(), other, fd, t.tid(), fd):
			e.epolls = append(e.epolls, other)
		}
	}
	for _, relative := range relatives(t.tid()) {
		// A child of fork(2) has it under the same number.
		if linux.SameFile(t.tid(), fd, relative, fd) && !linux.SameDescriptors(t.tid(), relative) {
			e.duplicated = true
		}
	}
	return e
}

// info returns the fdinfo of the caller's descriptor.
func (t *trap) info(fd int) ([]byte, error) {
	return os.ReadFile("/proc/" + strconv.Itoa(t.tid()) + "/fdinfo/" + strconv.Itoa(fd))
}

// closesOnExec reports whether the caller's descriptor has FD_CLOEXEC.
func (t *trap) closesOnExec(fd int) bool {
	info, err := t.info(fd)
	if err != nil {
		return false
	}
	for line := range bytes.Lines(info) {
		if text, found := bytes.CutPrefix(line, []byte("flags:")); found {
			flags, _ := strconv.ParseUint(string(bytes.TrimSpace(text)), 8, 64)
			return flags&unix.O_CLOEXEC != 0
		}
	}
	return false
}

// watch is the entry of a descriptor in an epoll instance.
type watch struct {
	events uint32
	data   uint64
}

// watchOf returns the entry of a descriptor in an epoll instance of the caller.
func (t *trap) watchOf(epoll, fd int) (watch, bool) {
	info, err := t.info(epoll)
	if err != nil {
		return watch{}, false
	}
	for line := range bytes.Lines(info) {
		fields := bytes.Fields(line)
		if len(fields) < 6 || string(fields[0]) != "tfd:" || string(fields[1]) != strconv.Itoa(fd) {
			continue
		}
		events, err1 := strconv.ParseUint(string(fields[3]), 16, 32)
		data, err2 := strconv.ParseUint(string(fields[5]), 16, 64)
		return watch{uint32(events), data}, err1 == nil && err2 == nil
	}
	return watch{}, false
}

// holds returns the caller's descriptor for the file that this process has as file.
func (t *trap) holds(file int) (number int, ok bool) {
	descriptors, err := listDescriptors(t.tid(), math.MaxInt)
	if err != nil {
		return -1, false
	}
	i := slices.IndexFunc(descriptors, func(fd int) bool { return linux.SameFile(os.Getpid(), file, t.tid(), fd) })
	if i < 0 {
		return -1, false
	}
	return descriptors[i], true
}
