// Command keyring makes keys of a user's and tries to reach them.
//
//	keyring session COMMAND...  runs COMMAND in a new session keyring
//	keyring add                 adds a key to the session's, the user's and the user session's
//	                            keyring, and prints the numbers of keyrings and keys
//	keyring fill                adds keys to the user's keyring until the kernel refuses one
//	keyring clear               removes all keys from the user's and the user session's keyring
//	keyring check ID...         fails unless each key can be read
//	keyring attack ID...        prints each request on a key that was not refused
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"
)

// Requests of keyctl(2), and its names for a process's own keyrings.
const (
	getKeyringID = iota
	joinSession
	update
	revoke
	chown
	setPermissions
	describe
	clearRing
	link
	unlink
	search
	read
	invalidate    = 21
	getPersistent = 22
)

const (
	session     = -3
	user        = -4
	userSession = -5
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "keyring:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("give session, add, fill, check, clear or attack")
	}
	switch verb, args := args[0], args[1:]; verb {
	case "session":
		return inSession(args)
	case "add":
		return add()
	case "check":
		for _, id := range args {
			n, err := strconv.Atoi(id)
			if err != nil {
				return err
			}
			if _, err := keyctl(read, n, 0, 0, 0); err != nil {
				return fmt.Errorf("read key %d: %w", n, err)
			}
		}
		return nil
	case "fill":
		return fill()
	case "clear":
		return clearRings()
	case "attack":
		return attack(args)
	}
	return fmt.Errorf("unknown verb %q", args[0])
}

func inSession(command []string) error {
	// Credentials belong to a thread, and exec(2) keeps the calling thread's.
	runtime.LockOSThread()
	if _, err := keyctl(joinSession, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("join a session keyring: %w", err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return syscall.Exec(path, command, os.Environ())
}

func add() error {
	for _, ring := range []int{session, user, userSession} {
		key, err := addKey(ring, "berth-test")
		if err != nil {
			return fmt.Errorf("add a key to keyring %d: %w", ring, err)
		}
		id, err := keyctl(getKeyringID, ring, 1, 0, 0)
		if err != nil {
			return fmt.Errorf("find keyring %d: %w", ring, err)
		}
		// As pam_keyinit does: only what the session leads to can be read.
		if _, err := keyctl(link, id, session, 0, 0); ring != session && err != nil {
			return fmt.Errorf("link keyring %d into the session's: %w", ring, err)
		}
		fmt.Println(id, key)
	}
	return nil
}

// fill uses up the quota, which counts keys and their bytes.
func fill() error {
	for i := 0; ; i++ {
		switch _, err := addKey(user, "berth-test-"+strconv.Itoa(i)); {
		case errors.Is(err, syscall.EDQUOT):
			return nil
		case err != nil:
			return fmt.Errorf("add key %d to the user's keyring: %w", i, err)
		}
	}
}

func clearRings() error {
	for _, ring := range []int{user, userSession} {
		if _, err := keyctl(clearRing, ring, 0, 0, 0); err != nil {
			return fmt.Errorf("clear keyring %d: %w", ring, err)
		}
	}
	return nil
}

func attack(args []string) error {
	ids := []int{session, user, userSession}
	for _, arg := range args {
		id, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	try := func(what string, id int, err error) {
		if err == nil {
			fmt.Printf("%s %d: not refused\n", what, id)
		}
	}
	for _, id := range ids {
		for _, request := range []struct {
			name string
			code int
			arg  int
		}{
			{"describe", describe, 0}, {"read", read, 0}, {"link", link, session}, {"set permissions of", setPermissions, 0x3f3f3f3f},
			{"unlink", unlink, session}, {"clear", clearRing, 0}, {"revoke", revoke, 0}, {"invalidate", invalidate, 0},
		} {
			_, err := keyctl(request.code, id, request.arg, 0, 0)
			try(request.name, id, err)
		}
		_, err := addKey(id, "berth-test")
		try("add to", id, err)
	}
	_, err := keyctl(getPersistent, -1, session, 0, 0)
	try("get the persistent keyring", -1, err)
	_, err = keyctl(joinSession, 0, 0, 0, 0)
	try("join a session", 0, err)
	return nil
}

func keyctl(code, a, b, c, d int) (int, error) {
	n, _, errno := syscall.Syscall6(syscall.SYS_KEYCTL, uintptr(code), uintptr(a), uintptr(b), uintptr(c), uintptr(d), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func addKey(ring int, called string) (int, error) {
	kind, name, payload := []byte("user\x00"), []byte(called+"\x00"), []byte("ticket")
	n, _, errno := syscall.Syscall6(syscall.SYS_ADD_KEY, uintptr(unsafe.Pointer(&kind[0])), uintptr(unsafe.Pointer(&name[0])),
		uintptr(unsafe.Pointer(&payload[0])), uintptr(len(payload)), uintptr(ring), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
