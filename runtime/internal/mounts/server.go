package mounts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/fuse"
	"berth.dev/berth/runtime/internal/inplace"
	"berth.dev/berth/runtime/internal/layercache"
	"berth.dev/berth/runtime/internal/lazy"
	"berth.dev/berth/runtime/internal/linux"
	"berth.dev/berth/runtime/internal/tree"
)

// Server serves the mounts that a snapshotter requests, see Run.
type Server struct {
	// Refused lists address ranges where no registry is contacted. It is set
	// before the first call.
	Refused []netip.Prefix
	// Budget multiplies the limits on directories. It is set before the first call.
	Budget budget.Budget

	requests, holder *net.UnixConn
	log              *slog.Logger
	// notice notifies the user.
	notice func(string)

	mu     sync.Mutex
	served map[string]bool
	// lazy maps paths to the layers that are still arriving. priority and scheduler
	// order their downloads. logins holds the registries' logins by name.
	lazy      map[string]*lazyLayer
	priority  lazy.PriorityGate
	scheduler lazy.Scheduler
	logins    map[string]lazy.Login
	extra     fuse.Extra
	group     sync.WaitGroup
}

// lazyLayer is a layer that is still arriving, for all mounts that contain it.
type lazyLayer struct {
	*lazy.File
	mounts int
	// stop ends its download.
	stop context.CancelFunc
}

// NewServer returns a server that answers the requests on a connection. If holder is not
// nil, the process at its other end keeps the descriptors of mounts. notice receives
// messages for the user. The caller closes both connections.
func NewServer(requests, holder *net.UnixConn, log *slog.Logger, notice func(string)) *Server {
	return &Server{requests: requests, holder: holder, log: log, notice: notice, served: map[string]bool{}, lazy: map[string]*lazyLayer{}, logins: map[string]lazy.Login{}}
}

// Resume takes over the mounts of a predecessor from the descriptor holder. It logs a
// mount that cannot be taken over, and fails only if the holder's messages are unusable.
func (s *Server) Resume() error {
	for s.holder != nil {
		var kept keptMessage
		files, err := linux.ReceivePacket(s.holder, &kept)
		if err != nil {
			return fmt.Errorf("take over mounts: %w", err)
		}
		if kept.Data == nil {
			linux.CloseAll(files)
			return nil
		}
		if kept.Data.Login {
			if err := s.learn(*kept.Data, files); err != nil {
				s.log.Error(fmt.Sprintf("take over a login: %v", err))
			}
			continue
		}
		if len(files) < 2 {
			linux.CloseAll(files)
			return fmt.Errorf("take over mount %s: %d descriptors", kept.ID, len(files))
		}
		layers, err := s.open(kept.Data.Layers, files[2:])
		if err == nil {
			err = s.start(*kept.Data, layers, files[0], files[1])
		}
		if err != nil {
			// Pods on this mount are lost, but pods on other mounts may not be.
			s.log.Error(fmt.Sprintf("take over mount %s: %v", kept.ID, err))
			s.drop(kept.ID)
			linux.CloseAll(files[:2])
		}
	}
	return nil
}

// Run answers requests until the other end closes the connection or ctx ends.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.requests.Close() })
	defer stop()
	for {
		var request Request
		files, err := linux.ReceivePacket(s.requests, &request)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return err
		}
		answer := reply{ID: request.ID}
		accept := s.accept
		if request.Login {
			accept = s.keepLogin
		}
		if err := accept(request, files); err != nil {
			answer.Error = err.Error()
			s.log.Error(fmt.Sprintf("serve mount: %v", err))
		}
		if err := linux.SendPacket(s.requests, answer); err != nil {
			return err
		}
	}
}

// keepLogin keeps a login here, and sends it to the descriptor holder.
func (s *Server) keepLogin(request Request, files []*os.File) error {
	var err error
	if s.holder != nil {
		err = linux.SendPacket(s.holder, keptMessage{ID: request.ID, Data: &request}, files...)
	}
	return errors.Join(err, s.learn(request, files))
}

// maxLogin bounds the text of a login.
const maxLogin = 64 << 10

// learn reads a login. It owns the descriptors.
func (s *Server) learn(request Request, files []*os.File) error {
	defer linux.CloseAll(files)
	if len(files) != 1 {
		return fmt.Errorf("a login with %d descriptors instead of 1", len(files))
	}
	var login lazy.Login
	text, err := io.ReadAll(io.NewSectionReader(files[0], 0, maxLogin))
	if err == nil && json.Unmarshal(text, &login) != nil {
		err = errors.New("it is malformed") // an error of json would quote the login
	}
	if err != nil {
		return fmt.Errorf("read a login: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logins[request.ID] = login
	return nil
}

func (s *Server) login(name string) (login lazy.Login, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	login, known = s.logins[name]
	return login, known
}

// accept starts to serve a mount. It owns the descriptors.
func (s *Server) accept(request Request, files []*os.File) error {
	if len(files) != 1 {
		linux.CloseAll(files)
		return fmt.Errorf("%d descriptors instead of 1", len(files))
	}
	s.mu.Lock()
	again := s.served[request.ID]
	s.mu.Unlock()
	if again {
		linux.CloseAll(files)
		return nil
	}
	fd, err := unix.MemfdCreate("requests", unix.MFD_CLOEXEC)
	if err != nil {
		linux.CloseAll(files)
		return fmt.Errorf("make memory file: %w", err)
	}
	files = append(files, os.NewFile(uintptr(fd), "requests"))
	layers, err := s.open(request.Layers, nil)
	if err == nil {
		err = unix.Ftruncate(fd, fuse.SlotsSize)
	}
	if err == nil && s.holder != nil {
		err = linux.SendPacket(s.holder, keptMessage{ID: request.ID, Data: &request}, append(files, layers.sources[:min(len(layers.sources), linux.MaxPacketFiles-len(files))]...)...)
	}
	if err == nil {
		err = s.start(request, layers, files[0], files[1])
	} else {
		layers.Close()
	}
	if err != nil {
		s.drop(request.ID)
		linux.CloseAll(files)
	}
	return err
}

// layers holds the open layers of a mount, the uppermost first.
type layers struct {
	images []*erofs.Image
	files  []io.Closer
	// sources holds the open SIF files of these layers.
	sources []*os.File
}

// Close closes the files.
func (l layers) Close() {
	for _, file := range l.files {
		file.Close()
	}
}

// open opens the layers of a mount. kept holds the SIF files of its layers that a
// predecessor has opened, in the order of the layers. open owns them.
func (s *Server) open(paths []string, kept []*os.File) (l layers, err error) {
	defer func() {
		if err != nil {
			l.Close()
			linux.CloseAll(kept)
			l = layers{}
		}
	}()
	for _, path := range paths {
		var image *erofs.Image
		var file io.Closer
		if inplace.Is(path) {
			var source *os.File
			if len(kept) > 0 {
				source, kept = kept[0], kept[1:]
			}
			var f *inplace.File
			if f, image, err = s.openInPlace(path, source); err == nil {
				file = f
				l.sources = append(l.sources, f.Source())
			}
		} else {
			image, file, err = s.openLayer(path)
		}
		if err != nil {
			return l, fmt.Errorf("open layer: %w", err)
		}
		image.MultiplyLimits(s.Budget.Times())
		l.images, l.files = append(l.images, image), append(l.files, file)
	}
	linux.CloseAll(kept)
	return l, nil
}

// openInPlace opens a layer whose content lies in a SIF file.
func (s *Server) openInPlace(path string, source *os.File) (*inplace.File, *erofs.Image, error) {
	f, err := inplace.Open(path, source, func(err error) {
		text := fmt.Sprintf("files of pods cannot be read, and give errors until they can: %v; where it was removed or replaced, start again", err)
		if errors.Is(err, inplace.ErrChanged) {
			text = fmt.Sprintf("files of pods cannot be read any more: %v", err)
		}
		s.log.Error(text)
		s.notice(text)
	})
	if err != nil {
		return nil, nil, err
	}
	image, err := f.Image()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, image, nil
}

// start serves a mount in the background. It then owns the descriptors; it owns the
// layers even on an error.
func (s *Server) start(request Request, opened layers, device, slots *os.File) error {
	merged, err := tree.New(opened.images)
	if err != nil {
		opened.Close()
		return err
	}
	s.mu.Lock()
	s.served[request.ID] = true
	s.mu.Unlock()
	var once sync.Once
	mount := fuse.Mount{
		Tree: merged, Device: device, Slots: slots, Squash: request.Squash, IDs: request.IDs, Extra: &s.extra, Log: s.log,
		Refused: func(err error) {
			once.Do(func() {
				remedy := "build the image again, with fewer layers"
				if errors.Is(err, erofs.ErrTooLarge) {
					remedy = fmt.Sprintf("check where it comes from, build it again with fewer files in a directory, or raise all limits with --image-budget %d", 2*s.Budget.Times())
				}
				s.notice(fmt.Sprintf("files of a pod cannot be read: its image is refused: %v; %s", err, remedy))
			})
		},
	}
	s.group.Go(func() {
		defer linux.CloseAll([]*os.File{device, slots})
		defer opened.Close()
		if err := mount.Serve(); err != nil {
			s.log.Error(fmt.Sprintf("serve mount %s: %v", request.ID, err))
		}
		s.drop(request.ID)
	})
	return nil
}

// openLayer opens a layer for a mount. The caller closes the closer when the mount ends.
func (s *Server) openLayer(path string) (*erofs.Image, io.Closer, error) {
	if lazy.Is(path) {
		return s.openLazy(path)
	}
	image, file, err := erofs.OpenFile(path)
	if err != nil {
		return nil, nil, err
	}
	var once sync.Once
	image.OnDamage(func(err error) { once.Do(func() { s.damaged(path, err) }) })
	return image, file, nil
}

// openLazy opens a layer that is still arriving. The download continues until it is
// complete, or until no mount uses the layer.
func (s *Server) openLazy(path string) (*erofs.Image, io.Closer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lazy[path]
	if l == nil {
		file, err := lazy.Open(path, lazy.Options{
			Refused: s.Refused, Login: s.login, PriorityGate: &s.priority, Scheduler: &s.scheduler, Log: func(text string) { s.log.Error(text) },
		})
		if err != nil {
			return nil, nil, err
		}
		ctx, stop := context.WithCancel(context.Background())
		l = &lazyLayer{File: file, stop: stop}
		s.lazy[path] = l
		go func() {
			if err := file.Fetch(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn(fmt.Sprintf("the rest of layer %s is fetched only when it is read: %v", path, err))
			}
		}()
	}
	l.mounts++
	image, err := l.Image()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", path, err), s.leaveLazyLocked(path, l))
	}
	return image, closer(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.leaveLazyLocked(path, l)
	}), nil
}

type closer func() error

func (c closer) Close() error { return c() }

// leaveLazyLocked releases a lazy layer of a mount that has ended. The last mount ends
// the download. The caller holds the lock.
func (s *Server) leaveLazyLocked(path string, l *lazyLayer) error {
	l.mounts--
	if l.mounts > 0 {
		return nil
	}
	delete(s.lazy, path)
	l.stop()
	return l.Close()
}

// drop removes a mount from the records of the server and of the descriptor holder.
func (s *Server) drop(id string) {
	s.mu.Lock()
	delete(s.served, id)
	s.mu.Unlock()
	if s.holder == nil {
		return
	}
	if err := linux.SendPacket(s.holder, keptMessage{ID: id}); err != nil {
		s.log.Error(fmt.Sprintf("forget mount %s: %v", id, err))
	}
}

// damaged reports a layer with wrong content. Its readers get an error. A cached
// layer is put aside, so that later mounts get another copy.
func (s *Server) damaged(path string, reason error) {
	text := fmt.Sprintf("layer %s is damaged, and files of pods cannot be read: %v", path, reason)
	if err := layercache.PutAside(path); err != nil {
		text += fmt.Sprintf("; %v", err)
	}
	s.log.Error(text)
	s.notice(text)
}
