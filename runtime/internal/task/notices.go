package task

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"berth.dev/berth/runtime/internal/bundle"
)

// leftNotices is the content of a file in the folder of notices. The node role reads and
// removes the file, and creates events, which the shim may not do.
type leftNotices struct {
	Pod     bundle.Pod
	Notices []bundle.Notice
}

// leaveNotices reports to the owner of a pod what was changed in a container.
func (s *Service) leaveNotices(id string, c bundle.Container) error {
	if s.notices == "" || len(c.Notices) == 0 {
		return nil
	}
	text, err := json.Marshal(leftNotices{c.Pod, c.Notices})
	if err != nil {
		return fmt.Errorf("encode notices: %w", err)
	}
	if err := os.MkdirAll(s.notices, 0o700); err != nil {
		return fmt.Errorf("leave notices: %w", err)
	}
	// The reader takes a file with the final extension to be complete.
	path := filepath.Join(s.notices, id)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("leave notices: %w", err)
	}
	if err := os.Rename(path, path+".json"); err != nil {
		return fmt.Errorf("leave notices: %w", err)
	}
	return nil
}
