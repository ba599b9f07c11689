package mounts

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/idmap"
	"berth.dev/berth/runtime/internal/lazy"
	"berth.dev/berth/runtime/internal/linux"
)

const (
	// askAgain is the wait for an answer before the request is repeated: the
	// server may have been killed after it had read the request.
	askAgain = 2 * time.Second
	// answerWithin bounds the wait for a server, which may be restarted
	// meanwhile.
	answerWithin = 30 * time.Second
)

// Client mounts trees.
type Client struct {
	// Squash makes user and group 0 the owners of all files. Otherwise owners are fitted
	// to IDs.
	Squash bool
	IDs    idmap.Map

	mu       sync.Mutex
	conn     *net.UnixConn
	loginsMu sync.Mutex
	// logins maps each login that the server has to its name there.
	logins map[lazy.Login]string
}

// NewClient returns a client of the server at the other end of conn, which it
// owns from now on.
func NewClient(conn *net.UnixConn) *Client { return &Client{conn: conn} }

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Mount mounts the tree of layers, the uppermost first, on a directory.
func (c *Client) Mount(ctx context.Context, target string, layers []string) error {
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("mount image: %w; an administrator can run: modprobe fuse && chmod 0666 /dev/fuse", err)
	}
	// Only the server may keep the device open. Otherwise its death would not be noticed.
	defer device.Close()
	// With these options the kernel checks permissions. It never admits processes of other
	// user namespaces.
	data := fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions", device.Fd())
	if err := unix.Mount("berth", target, "fuse.berth", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOATIME, data); err != nil {
		return fmt.Errorf("mount image on %s: %w", target, err)
	}
	if err := c.ask(ctx, Request{ID: rand.Text(), Layers: layers, Squash: c.Squash, IDs: c.IDs}, device); err != nil {
		return errors.Join(fmt.Errorf("mount image on %s: %w", target, err), Unmount(target))
	}
	return nil
}

// Login keeps a login with the server, and returns the name that it has there.
func (c *Client) Login(ctx context.Context, login lazy.Login) (string, error) {
	c.loginsMu.Lock()
	defer c.loginsMu.Unlock()
	if name := c.logins[login]; name != "" {
		return name, nil
	}
	text, err := json.Marshal(login)
	if err != nil {
		return "", err
	}
	fd, err := unix.MemfdCreate("login", unix.MFD_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("make memory file: %w", err)
	}
	file := os.NewFile(uintptr(fd), "login")
	defer file.Close()
	name := rand.Text()
	if _, err = file.Write(text); err == nil {
		err = c.ask(ctx, Request{ID: name, Login: true}, file)
	}
	if err != nil {
		return "", fmt.Errorf("hand over a login: %w", err)
	}
	if c.logins == nil {
		c.logins = map[lazy.Login]string{}
	}
	c.logins[login] = name
	return name, nil
}

// ask hands a mount or a login over to the server, and returns the error that it answers.
func (c *Client) ask(ctx context.Context, request Request, device *os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	deadline := time.Now().Add(answerWithin)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	for time.Now().Before(deadline) && ctx.Err() == nil {
		next := time.Now().Add(askAgain)
		if err := c.conn.SetDeadline(next); err != nil {
			return err
		}
		if err := linux.SendPacket(c.conn, request, device); err != nil {
			return fmt.Errorf("send request for a mount: %w", err)
		}
		for {
			var answer reply
			files, err := linux.ReceivePacket(c.conn, &answer)
			linux.CloseAll(files)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return fmt.Errorf("receive answer about a mount: %w", err)
			}
			if answer.ID != request.ID {
				continue // an answer to an earlier, repeated request
			}
			if answer.Error != "" {
				return errors.New(answer.Error)
			}
			return nil
		}
	}
	return errors.New("the role that serves images does not answer")
}

// Unmount removes a mount from its directory. Processes that use the mount can continue. It
// returns nil if nothing is mounted there.
func Unmount(target string) error {
	if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount image from %s: %w", target, err)
	}
	return nil
}

// Served reports whether there is a mount on target that a process serves.
func Served(target string) bool {
	var st unix.Statfs_t
	const fuseMagic = 0x65735546
	return unix.Statfs(target, &st) == nil && st.Type == fuseMagic
}
