package savedstate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A run claims a folder by creating a file claim-N, where N is one more than the highest
// existing number. Every file system, even NFS, can create a file only if it does
// not exist (O_EXCL), but locks do not work on all file systems of sites.
//
// If the run of the highest claim is dead, another run makes the next claim, and
// only one of several succeeds. Before each rename, a run checks that its claim
// exists and is the highest. So a run that was wrongly taken for dead does not
// overwrite its successor's state.

const claimPrefix = "claim-"

// silence is the age after which a claim of unknown state counts as abandoned.
const silence = 5 * time.Minute

// Owner identifies the run that uses a folder.
type Owner struct {
	// Cluster and Job are Slurm's names, empty outside Slurm. Attempt counts the
	// restarts of the job.
	Cluster, Job string
	Attempt      int
	// Host, Boot and Process identify a process among all others.
	Host, Boot, Process string
}

func (o Owner) String() string {
	if o.Job != "" {
		return "job " + o.Job
	}
	return "process " + o.Process + " on " + o.Host
}

// Life is the state of a run.
type Life int

const (
	Unknown Life = iota
	Alive
	Dead
)

// Lives returns the state of an owner's run.
type Lives func(Owner) Life

type claim struct {
	folder string
	number int
	owner  Owner
}

// takeClaim makes the next claim, and removes the earlier ones. It returns an error if a live
// run has the last claim.
func takeClaim(folder string, owner Owner, lives Lives) (claim, error) {
	for {
		numbers, err := claims(folder)
		if err != nil {
			return claim{}, fmt.Errorf("claim the folder of the state: %w", err)
		}
		next := 1
		if len(numbers) > 0 {
			last := claim{folder: folder, number: numbers[len(numbers)-1]}
			next = last.number + 1
			if err := last.refuse(lives); err != nil {
				return claim{}, err
			}
		}
		c := claim{folder: folder, number: next, owner: owner}
		err = c.make()
		if errors.Is(err, fs.ErrExist) {
			continue // another run was faster
		}
		if err != nil {
			return claim{}, fmt.Errorf("claim the folder of the state: %w", err)
		}
		for _, number := range numbers {
			stale := claim{folder: folder, number: number}
			_ = os.Remove(stale.file(""))
			_ = os.Remove(stale.file(".new"))
		}
		return c, nil
	}
}

// claims returns the numbers of the existing claims in ascending order.
func claims(folder string) ([]int, error) {
	entries, err := os.ReadDir(folder) // sorted by name, and the names have one length
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, entry := range entries {
		number, err := strconv.Atoi(strings.TrimPrefix(entry.Name(), claimPrefix))
		if strings.HasPrefix(entry.Name(), claimPrefix) && err == nil {
			numbers = append(numbers, number)
		}
	}
	return numbers, nil
}

func (c claim) file(suffix string) string {
	return filepath.Join(c.folder, fmt.Sprintf("%s%08d%s", claimPrefix, c.number, suffix))
}

func (c claim) make() error {
	content, err := json.Marshal(c.owner)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(c.file(""), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// refuse returns an error if the claim belongs to a live run, or to a run of unknown state
// that renewed it less than silence ago.
func (c claim) refuse(lives Lives) error {
	content, err := os.ReadFile(c.file(""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the run has just ended
	}
	if err != nil {
		return fmt.Errorf("claim the folder of the state: %w", err)
	}
	info, err := os.Stat(c.file(""))
	if err != nil {
		return nil
	}
	// The content may be missing, because the owner has only created the file.
	life := Unknown
	var owner Owner
	if json.Unmarshal(content, &owner) == nil {
		life = lives(owner)
	}
	age, err := c.age(info)
	if err != nil {
		return fmt.Errorf("claim the folder of the state: %w", err)
	}
	if life == Dead || life == Unknown && age > silence {
		return nil
	}
	who := "another run"
	if owner != (Owner{}) {
		who = owner.String()
	}
	if life == Unknown {
		return fmt.Errorf("use the folder of the state %s: %s used it %s ago, and may still run: try again in %s, or, if you know that it has ended: rm %s",
			c.folder, who, age.Round(time.Second), (silence - age).Round(time.Second), c.file(""))
	}
	return fmt.Errorf("use the folder of the state %s: %s is using it; wait for its end, or use another folder", c.folder, who)
}

// age returns the time since the claim was renewed. It compares two times of the file
// system's clock, because the clocks of hosts may differ.
func (c claim) age(renewed fs.FileInfo) (time.Duration, error) {
	probe, err := os.CreateTemp(c.folder, ".clock-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(probe.Name())
	_, err = probe.WriteString("now")
	if err = errors.Join(err, probe.Close()); err != nil {
		return 0, err
	}
	now, err := os.Stat(probe.Name())
	if err != nil {
		return 0, err
	}
	return now.ModTime().Sub(renewed.ModTime()), nil
}

// check returns errTaken if another run has the folder now.
func (c claim) check() error {
	numbers, err := claims(c.folder)
	if err != nil {
		return err
	}
	if len(numbers) == 0 || numbers[len(numbers)-1] != c.number {
		return errTaken
	}
	content, err := os.ReadFile(c.file(""))
	if err != nil {
		return err
	}
	var owner Owner
	if json.Unmarshal(content, &owner) != nil || owner != c.owner {
		return errTaken
	}
	return nil
}

func (c claim) renew() error {
	if err := c.check(); err != nil {
		return err
	}
	file, err := os.OpenFile(c.file(""), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	content, err := json.Marshal(c.owner)
	if err == nil {
		_, err = file.Write(content) // writing the same content sets the time by the file system's clock
	}
	return errors.Join(err, file.Close())
}

func (c claim) release() error {
	if c.check() != nil {
		return nil
	}
	return os.Remove(c.file(""))
}
