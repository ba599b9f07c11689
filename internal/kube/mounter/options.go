package mounter

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// option holds the flags of mount(2) that one option of mount(8) sets and clears.
type option struct{ set, clear uintptr }

func options() map[string]option {
	return map[string]option{
		"defaults": {}, "rw": {clear: unix.MS_RDONLY}, "ro": {set: unix.MS_RDONLY},
		"suid": {clear: unix.MS_NOSUID}, "nosuid": {set: unix.MS_NOSUID},
		"dev": {clear: unix.MS_NODEV}, "nodev": {set: unix.MS_NODEV},
		"exec": {clear: unix.MS_NOEXEC}, "noexec": {set: unix.MS_NOEXEC},
		"async": {clear: unix.MS_SYNCHRONOUS}, "sync": {set: unix.MS_SYNCHRONOUS},
		"dirsync": {set: unix.MS_DIRSYNC}, "silent": {set: unix.MS_SILENT},
		"atime": {clear: unix.MS_NOATIME}, "noatime": {set: unix.MS_NOATIME},
		"diratime": {clear: unix.MS_NODIRATIME}, "nodiratime": {set: unix.MS_NODIRATIME},
		"relatime": {set: unix.MS_RELATIME}, "norelatime": {clear: unix.MS_RELATIME},
		"strictatime": {set: unix.MS_STRICTATIME}, "nostrictatime": {clear: unix.MS_STRICTATIME},
		"lazytime": {set: unix.MS_LAZYTIME}, "nolazytime": {clear: unix.MS_LAZYTIME},
		"nosymfollow": {set: unix.MS_NOSYMFOLLOW},
		"bind":        {set: unix.MS_BIND}, "rbind": {set: unix.MS_BIND | unix.MS_REC},
		"remount": {set: unix.MS_REMOUNT},
		// Meant for mount(8) and fstab, not for the kernel.
		"auto": {}, "noauto": {}, "nofail": {}, "_netdev": {}, "user": {}, "nouser": {},
	}
}

func propagations() map[string]uintptr {
	return map[string]uintptr{
		"private": unix.MS_PRIVATE, "rprivate": unix.MS_PRIVATE | unix.MS_REC,
		"slave": unix.MS_SLAVE, "rslave": unix.MS_SLAVE | unix.MS_REC,
		"shared": unix.MS_SHARED, "rshared": unix.MS_SHARED | unix.MS_REC,
		"unbindable": unix.MS_UNBINDABLE, "runbindable": unix.MS_UNBINDABLE | unix.MS_REC,
	}
}

// request holds the kernel's form of a list of mount(8) options.
type request struct {
	flags uintptr
	// propagation holds the changes to apply after the mount, one by one: mount(2)
	// accepts only one in a call, without other flags.
	propagation []uintptr
	data        string
}

func parse(words []string) request {
	var r request
	var data []string
	known, prop := options(), propagations()
	for _, list := range words {
		for word := range strings.SplitSeq(list, ",") {
			if word == "" || strings.HasPrefix(word, "x-") || strings.HasPrefix(word, "comment=") {
				continue
			}
			if o, ok := known[word]; ok {
				r.flags = r.flags&^o.clear | o.set
			} else if p, ok := prop[word]; ok {
				r.propagation = append(r.propagation, p)
			} else {
				data = append(data, word)
			}
		}
	}
	r.data = strings.Join(data, ",")
	return r
}

// settable holds the flags that a remount of a bind mount may change.
const settable = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC |
	unix.MS_NOATIME | unix.MS_NODIRATIME | unix.MS_RELATIME | unix.MS_NOSYMFOLLOW

func (r request) apply(source, target, fstype string) error {
	only := r.flags == 0 && r.data == "" && fstype == "" && len(r.propagation) > 0
	switch {
	case only: // mount --make-...
	case r.flags&unix.MS_BIND != 0:
		if err := r.bind(source, target); err != nil {
			return err
		}
	default:
		if err := unix.Mount(source, target, fstype, r.flags, r.data); err != nil {
			return err
		}
	}
	for _, p := range r.propagation {
		if err := unix.Mount("", target, "", p, ""); err != nil {
			return fmt.Errorf("set propagation %#x: %w", p, err)
		}
	}
	return nil
}

// bind makes a bind mount, or remounts one. It takes two steps, because the kernel
// ignores all flags but MS_REC when it makes a bind mount. The second step repeats the
// mount's existing flags: flags from outside the user namespace are locked, and the
// kernel refuses to clear them (EPERM).
func (r request) bind(source, target string) error {
	if r.flags&unix.MS_REMOUNT == 0 {
		if err := unix.Mount(source, target, "", r.flags&(unix.MS_BIND|unix.MS_REC), ""); err != nil {
			return err
		}
	}
	want := r.flags & settable
	if want == 0 && r.flags&unix.MS_REMOUNT == 0 {
		return nil
	}
	has, err := mountFlags(target)
	if err != nil {
		return err
	}
	if want&^has == 0 && r.flags&unix.MS_REMOUNT == 0 {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|want|has, ""); err != nil {
		return fmt.Errorf("remount: %w", err)
	}
	return nil
}

// mountFlags returns the flags of the mount at path, with the values of mount(2). statfs
// has the same values, except for two flags.
func mountFlags(path string) (uintptr, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, fmt.Errorf("read mount flags of %s: %w", path, err)
	}
	flags := uintptr(s.Flags) & (unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME)
	if s.Flags&unix.ST_RELATIME != 0 {
		flags |= unix.MS_RELATIME
	}
	if s.Flags&stNoSymFollow != 0 {
		flags |= unix.MS_NOSYMFOLLOW
	}
	return flags, nil
}

// stNoSymFollow is ST_NOSYMFOLLOW (Linux 5.10).
const stNoSymFollow = 0x2000
