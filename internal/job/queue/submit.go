package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/job/batch"
)

// marker precedes the UID in the comment of a job.
const marker = "berth-object="

var validUID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// Submit submits the held job that prepare returns for a version of an object, and returns its
// number. The UID and the version consist of letters, digits, ".", "_" and "-". If an earlier
// call, possibly of another process, has submitted a job for the object, Submit returns the number
// of that job and does not call prepare. If that job belongs to another version and is still held,
// Submit replaces it. The error is a *Refused if Slurm rejects the job, an *Unavailable if Slurm
// does not answer, or the error of prepare. After an *Unavailable the caller may call Submit
// again, until it has stored a number.
func (c *Client) Submit(ctx context.Context, uid, version string, prepare func() (Job, error)) (id string, err error) {
	if !validUID.MatchString(uid) || !validUID.MatchString(version) {
		return "", fmt.Errorf("submit a job for object %q, version %q: this is no UID and version", uid, version)
	}
	earlier, err := c.find(ctx, uid)
	if err != nil {
		return "", err
	}
	if earlier.id != "" {
		if earlier.version == "" || earlier.version == version {
			return earlier.id, nil
		}
		if replaced, err := c.replace(ctx, uid, earlier.id); err != nil || !replaced {
			return earlier.id, err
		}
	}
	job, err := prepare()
	if err != nil {
		return "", err
	}
	select {
	case c.submitting <- struct{}{}:
		defer func() { <-c.submitting }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if err := c.pace(ctx); err != nil {
		return "", err
	}
	script, err := c.writeScript(uid, version, job)
	if err != nil {
		return "", err
	}
	id, err = c.sbatch(ctx, uid, job, script)
	if refused := new(Refused); errors.As(err, &refused) && refused.Full {
		// Nothing was submitted, so the next call needs no search. The message of another
		// refusal may be one that this client does not know.
		_ = os.Remove(script)
		return "", err
	}
	if err != nil {
		return "", err
	}
	own := id
	if id = c.storeNumber(uid, submission{id, version}); id != own {
		// Another process submitted a job meanwhile, and may have released it.
		if err := c.Cancel(ctx, own); err != nil {
			c.options.Log.Warn("cancel a second job of an object", "object", uid, "job", own, "error", err)
		}
	}
	return id, nil
}

// pace waits until PerMinute permits another submission.
func (c *Client) pace(ctx context.Context) error {
	if c.options.PerMinute > 0 {
		if err := sleepUntil(ctx, c.lastSubmit.Add(time.Minute/time.Duration(c.options.PerMinute))); err != nil {
			return err
		}
	}
	c.lastSubmit = time.Now()
	return nil
}

// sleepUntil returns nil at the given time, or an error if ctx ends first.
func sleepUntil(ctx context.Context, when time.Time) error {
	select {
	case <-time.After(time.Until(when)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// submission identifies a job of an object. version is the version of the object that has the job,
// or empty if it is unknown. It is part of the script's path, which squeue lists, so it is known
// after a lost answer.
type submission struct{ id, version string }

// replace cancels the job of an earlier call if it is held, and reports whether it did. The caller
// has stored no number, so nobody has released the job.
func (c *Client) replace(ctx context.Context, uid, id string) (bool, error) {
	snapshot, err := c.snapshot(ctx, time.Now())
	if err != nil {
		return false, err
	}
	folder, held := Folder(c.options.State, uid), false
	for _, job := range snapshot.jobs {
		if job.root == id && job.belongs(uid, folder) {
			if !job.isHeld {
				return false, nil
			}
			held = true
		}
	}
	if !held {
		return false, nil
	}
	c.options.Log.Info("cancel a held job of an object that was changed since, to submit it again", "object", uid, "job", id)
	// Once the number is in this file, Find finds another job or none.
	numbers := append(readReplaced(folder), id)
	if err := writeAtomic(filepath.Join(folder, replacedName), []byte(strings.Join(numbers, "\n")+"\n"), 0o600); err != nil {
		return false, fmt.Errorf("replace job %s of object %s: %w", id, uid, err)
	}
	if err := c.change(ctx, "scancel", id); err != nil {
		// States cancels it once the object has another job.
		c.options.Log.Warn("cancel the held job of an object that was changed since", "object", uid, "job", id, "error", err)
	}
	return true, nil
}

// readReplaced returns the numbers of an object's jobs that were replaced.
func readReplaced(folder string) []string {
	text, err := readSmall(filepath.Join(folder, replacedName))
	if err != nil {
		return nil
	}
	return strings.Fields(text)
}

// writeScript writes the batch script and the object's own script into the folder of the
// object, and returns the path of the batch script. The folder exists before the job, so the
// batch script can tell that a node without the folder does not share the file system.
func (c *Client) writeScript(uid, version string, job Job) (string, error) {
	folder := Folder(c.options.State, uid)
	path := filepath.Join(folder, ScriptName+"-"+version)
	err := os.MkdirAll(folder, 0o700)
	if err == nil && job.UserScript != nil {
		err = writeAtomic(filepath.Join(folder, UserScriptName), job.UserScript, 0o700)
	}
	if err == nil {
		err = writeAtomic(path, job.Script, 0o700)
	}
	if err == nil {
		// Find compares this with the clock of this host. The clock of a file server
		// may differ.
		err = os.Chtimes(path, time.Time{}, time.Now())
	}
	if err != nil {
		return "", fmt.Errorf("write the batch script of object %s: %w", uid, err)
	}
	return path, nil
}

// writeAtomic writes a file that has its old or its new content after a crash.
func writeAtomic(path string, content []byte, mode os.FileMode) error {
	return writeWith(os.Rename, path, content, mode)
}

// writeWith writes a temporary file and gives it its name with os.Rename or os.Link.
func writeWith(name func(from, to string) error, path string, content []byte, mode os.FileMode) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return err
	}
	if err := file.Chmod(mode); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return name(file.Name(), path)
}

// sbatch calls sbatch once, and returns the number of the job.
func (c *Client) sbatch(ctx context.Context, uid string, job Job, script string) (string, error) {
	if info, err := os.Stat(job.Dir); job.Dir != "" && (err != nil || !info.IsDir()) {
		return "", &Refused{Message: fmt.Sprintf("the working directory %s does not exist on this host", job.Dir)}
	}
	limited, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	comment := strings.TrimSpace(marker + uid + " " + job.Comment)
	words := append([]string{"--parsable", "--hold", "--comment=" + comment}, job.Options...)
	words = append(append(words, script), job.Args...)
	var stderr bytes.Buffer
	submitted, err := batch.Submit(limited, "sbatch", batch.Submission{
		Options: []batch.Option{{Words: words}}, Dir: job.Dir, Env: c.options.Env,
		Stdout: io.Discard, Stderr: &stderr,
	})
	message := oneLine(stderr.String())
	refused := new(batch.Refused)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case limited.Err() != nil:
		return "", &Unavailable{fmt.Errorf("sbatch did not answer within %s", c.options.Timeout)}
	case errors.As(err, &refused):
		return "", rejection(message)
	case err != nil:
		return "", err
	case submitted.ID == "":
		return "", &Unavailable{errors.New("sbatch printed no number of a job")}
	}
	return submitted.ID, nil
}

// Test asks Slurm whether it would ever start a job, without submitting it. It returns nil if so,
// and the same errors as Submit.
func (c *Client) Test(ctx context.Context, job Job) error {
	limited, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	var stderr bytes.Buffer
	_, err := batch.Submit(limited, "sbatch", batch.Submission{
		Options: []batch.Option{{Words: append([]string{"--test-only"}, job.Options...)}}, Dir: job.Dir, Env: c.options.Env,
		Script: job.Script, Stdout: io.Discard, Stderr: &stderr,
	})
	switch {
	case errors.As(err, new(*batch.Refused)):
		return rejection(oneLine(stderr.String()))
	case err != nil:
		return &Unavailable{err}
	}
	return nil
}

// rejection returns the error for the message of an sbatch that failed.
func rejection(message string) error {
	if matches(message, unavailable) {
		return &Unavailable{errors.New(message)}
	}
	return &Refused{Message: message, Full: matches(message, full)}
}

// oneLine joins the messages that sbatch printed, without its hint at --help.
func oneLine(stderr string) string {
	var messages []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		line = strings.TrimPrefix(strings.TrimPrefix(line, "sbatch: "), "error: ")
		if line != "" && !strings.HasPrefix(line, "Try \"sbatch") {
			messages = append(messages, line)
		}
	}
	return strings.Join(messages, "; ")
}

// Find returns the number of the job that was submitted for an object, even if the job has
// ended. It reads the number from the object's folder, or calls squeue; the error is then an
// *Unavailable if Slurm does not answer. For a folder without a batch script, Find uses the
// result of the last interval: the folder may have been lost, or another process, with another
// folder, may have submitted the job.
func (c *Client) Find(ctx context.Context, uid string) (id string, found bool, err error) {
	job, err := c.find(ctx, uid)
	return job.id, job.id != "", err
}

// find returns the job that Find finds, or the zero value.
func (c *Client) find(ctx context.Context, uid string) (submission, error) {
	if !validUID.MatchString(uid) {
		return submission{}, fmt.Errorf("find the job of object %q: this is no UID", uid)
	}
	folder := Folder(c.options.State, uid)
	if stored := readNumber(folder); stored.id != "" {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.known[uid] == nil {
			c.known[uid] = &known{id: stored.id}
		}
		return stored, nil
	}
	begun, err := lastScript(folder)
	if err != nil {
		return submission{}, fmt.Errorf("find the job of object %s: %w", uid, err)
	}
	replaced := readReplaced(folder)
	if begun.IsZero() {
		snapshot, err := c.snapshot(ctx, time.Now().Add(-c.options.Interval))
		if err != nil {
			return submission{}, err
		}
		return c.storeFound(uid, snapshot.find(uid, folder, replaced)), nil
	}
	// A slurmctld that has just started may answer squeue before it accepts an sbatch that
	// was waiting, so one call is not enough. After an outage, all objects share two calls,
	// because their sbatch ended long ago.
	from := begun.Add(c.options.Timeout)
	if now := time.Now(); from.After(now) {
		from = now
	}
	for next := from; ; {
		snapshot, err := c.snapshot(ctx, next)
		if err != nil {
			return submission{}, err
		}
		job := snapshot.find(uid, folder, replaced)
		if job.id != "" || !snapshot.before.Before(from) {
			return c.storeFound(uid, job), nil
		}
		next = snapshot.began.Add(1)
	}
}

// lastScript returns the time of the last batch script in the folder of an object, or the zero time
// if there is none.
func lastScript(folder string) (time.Time, error) {
	var last time.Time
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return last, nil
	}
	for _, entry := range entries {
		if entry.Name() != ScriptName && !strings.HasPrefix(entry.Name(), ScriptName+"-") {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return last, err
		}
		if info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last, err
}

// storeFound stores the number of a job, unless the job is the zero value, and returns the job.
func (c *Client) storeFound(uid string, job submission) submission {
	if job.id == "" {
		return job
	}
	if id := c.storeNumber(uid, job); id != job.id {
		return readNumber(Folder(c.options.State, uid))
	}
	return job
}

// storeNumber stores the number of an object's job in memory and in the object's folder, and
// returns it. If another process has stored a number, it returns that number.
func (c *Client) storeNumber(uid string, job submission) string {
	id := job.id
	folder := Folder(c.options.State, uid)
	path := filepath.Join(folder, NumberName)
	text := []byte(strings.TrimSpace(id+" "+job.version) + "\n")
	err := os.MkdirAll(folder, 0o700)
	if err == nil {
		err = writeWith(os.Link, path, text, 0o600)
	}
	if errors.Is(err, fs.ErrExist) {
		if other := readNumber(folder); other.id != "" {
			id, err = other.id, nil
		} else { // the file is damaged, or the job in it was replaced
			err = writeAtomic(path, text, 0o600)
		}
	}
	if err != nil {
		c.options.Log.Warn("record the number of a job", "object", uid, "job", id, "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[uid] = &known{id: id, submitted: time.Now()}
	return id
}

// readNumber returns the job whose number is in the folder of an object, unless it was replaced.
func readNumber(folder string) submission {
	text, err := readSmall(filepath.Join(folder, NumberName))
	id, version, _ := strings.Cut(strings.TrimSpace(text), " ")
	if err != nil || number(id) <= 0 || slices.Contains(readReplaced(folder), id) {
		return submission{}
	}
	return submission{id, version}
}
