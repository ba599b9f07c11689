package linux

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"
)

// FDTable lists files for another process by name, so that the two processes need
// not agree on an order. Several files can have the same name.
type FDTable struct {
	names []string
	files []*os.File
}

// Add adds files with a name.
func (t *FDTable) Add(name string, files ...*os.File) {
	for _, file := range files {
		t.names = append(t.names, name)
		t.files = append(t.files, file)
	}
}

// firstExtra is the descriptor of the first of a command's ExtraFiles.
const firstExtra = 3

// handover is the content of the memory file that Start passes.
type handover struct {
	Config any
	FDs    PassedFDs
}

// Start starts command, which inherits the files of the table after its ExtraFiles,
// and before them a memory file with config. The other process reads that file with
// ReceiveFDs.
func (t *FDTable) Start(command *exec.Cmd, config any) error {
	encoded, err := json.Marshal(handover{config, t.Numbers(firstExtra + len(command.ExtraFiles) + 1)})
	if err != nil {
		return err
	}
	file, err := MemoryFile("config", encoded)
	if err != nil {
		return err
	}
	defer file.Close()
	command.ExtraFiles = slices.Concat(command.ExtraFiles, []*os.File{file}, t.files)
	return command.Start()
}

// Numbers returns the descriptors in the other process if the first is first.
func (t *FDTable) Numbers(first int) PassedFDs {
	numbers := PassedFDs{}
	for i, name := range t.names {
		numbers[name] = append(numbers[name], first+i)
	}
	return numbers
}

// ReceiveFDs returns what Start passed to this process, and decodes config. fd is the
// memory file, which comes after the ExtraFiles.
func ReceiveFDs(fd int, config any) (PassedFDs, error) {
	file := os.NewFile(uintptr(fd), "config")
	defer file.Close()
	received := handover{Config: config}
	err := json.NewDecoder(io.NewSectionReader(file, 0, 1<<40)).Decode(&received)
	return received.FDs, err
}

// ReceiveFiles returns the files that Start passed to this process, one for each name,
// and decodes config. The process has no ExtraFiles.
func ReceiveFiles(config any, names ...string) (map[string]*os.File, error) {
	fds, err := ReceiveFDs(firstExtra, config)
	if err != nil {
		return nil, err
	}
	files := map[string]*os.File{}
	for _, name := range names {
		if files[name], err = fds.Take(name); err != nil {
			return nil, err
		}
	}
	return files, fds.CheckAllTaken()
}

// PassedFDs maps the names of an FDTable to descriptors of this process.
type PassedFDs map[string][]int

// Has reports whether a file with this name was passed and not taken yet.
func (p PassedFDs) Has(name string) bool { return len(p[name]) > 0 }

// Take returns the next file with this name, for Go's poller.
func (p PassedFDs) Take(name string) (*os.File, error) {
	if !p.Has(name) {
		return nil, fmt.Errorf("no descriptor is passed for %s", name)
	}
	fd := p[name][0]
	p[name] = p[name][1:]
	if len(p[name]) == 0 {
		delete(p, name)
	}
	return PassedFile(fd)
}

// CheckAllTaken returns an error if a file was passed that nothing has taken.
func (p PassedFDs) CheckAllTaken() error {
	if left := slices.Sorted(maps.Keys(p)); len(left) > 0 {
		return fmt.Errorf("passed descriptors are not used: %v", left)
	}
	return nil
}

// TakeAs makes a socket from the next file with this name.
func TakeAs[T any](p PassedFDs, name string, use func(*os.File) (T, error)) (none T, err error) {
	file, err := p.Take(name)
	if err != nil {
		return none, err
	}
	defer file.Close()
	return use(file)
}

// PassedFile prepares a descriptor from the parent process for Go's poller.
func PassedFile(fd int) (*os.File, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("use passed descriptor %d: %w", fd, err)
	}
	return os.NewFile(uintptr(fd), "passed"), nil
}
