package process

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/controller"
	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/objectstore"
	"berth.dev/berth/internal/slurmjobs/results"
)

// S3 configures the S3 stores that objects may name.
type S3 struct {
	// Endpoints holds the URLs of the stores.
	Endpoints []string
	// Region is part of the signatures. The default is objectstore.DefaultRegion.
	Region string
}

// Check returns an error if the options are invalid.
func (s S3) Check() error {
	_, err := objectstore.New(s.Endpoints, s.Region)
	return err
}

// storage opens the S3 stores that objects name.
type storage struct {
	endpoints *objectstore.Endpoints
	// secret returns a Secret of a namespace.
	secret func(ctx context.Context, namespace, name string) (*unstructured.Unstructured, error)
}

// newStorage returns the stores for objects of a cluster.
func (s S3) newStorage(client dynamic.Interface) (storage, error) {
	endpoints, err := objectstore.New(s.Endpoints, s.Region)
	return storage{endpoints, func(ctx context.Context, namespace, name string) (*unstructured.Unstructured, error) {
		return client.Resource(secretsResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	}}, err
}

var secretsResource = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// open opens the store of an object in a namespace. It reads the Secret only if the endpoint is
// permitted.
func (s storage) open(ctx context.Context, namespace string, storage kinds.S3Storage) (*objectstore.Store, error) {
	if _, err := s.endpoints.Open(storage.Endpoint, storage.Secure, objectstore.Key{}); err != nil {
		return nil, err
	}
	secret, err := s.secret(ctx, namespace, storage.Secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("namespace %s has no Secret %s with the credentials for S3: create it, with accesskey and secretkey", namespace, storage.Secret)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("the controller may not read Secret %s: have the cluster's administrator apply the output of 'berth slurm-jobs setup --s3-secret %s'", storage.Secret, storage.Secret)
	case err != nil:
		return nil, fmt.Errorf("read Secret %s: %w", storage.Secret, err)
	}
	key := objectstore.Key{ID: value(secret, "accesskey"), Secret: value(secret, "secretkey")}
	if key.ID == "" || key.Secret == "" {
		return nil, fmt.Errorf("the Secret %s lacks accesskey and secretkey, the credentials for S3: add them", storage.Secret)
	}
	if strings.ContainsFunc(key.ID+key.Secret, unicode.IsControl) {
		return nil, fmt.Errorf("accesskey or secretkey of the Secret %s contains a line break or another control character: remove it", storage.Secret)
	}
	return s.endpoints.Open(storage.Endpoint, storage.Secure, key)
}

// value returns a value of a Secret, without the line break that an editor or echo adds.
func value(secret *unstructured.Unstructured, name string) string {
	encoded, _, _ := unstructured.NestedString(secret.Object, "data", name)
	decoded, _ := base64.StdEncoding.DecodeString(encoded)
	return strings.TrimRight(string(decoded), "\r\n")
}

// readObject reads the script of an object from S3.
func (p preparer) readObject(ctx context.Context, namespace string, request kinds.Request) ([]byte, error) {
	place := *request.ScriptObject
	store, err := p.storage.open(ctx, namespace, request.S3)
	var text []byte
	if err == nil {
		text, err = store.Get(ctx, place.Bucket, place.Name, maxScript)
	}
	if err != nil {
		return nil, classify(fmt.Errorf("read the script %s:%s from S3: %w", place.Bucket, place.Name, err))
	}
	return text, nil
}

// classify wraps an error after which the controller tries again to prepare a job: all but the
// refusals of a store.
func classify(err error) error {
	if refused := new(objectstore.Refused); errors.As(err, &refused) {
		return err
	}
	return &controller.Temporary{Err: err}
}

// checkUpload returns an error if the files of a job could not be uploaded when it has ended.
func (p preparer) checkUpload(ctx context.Context, object *unstructured.Unstructured, request kinds.Request, text []byte) error {
	if _, _, err := p.uploads(object, request, text, "1"); err != nil {
		return err
	}
	if _, err := p.storage.open(ctx, object.GetNamespace(), request.S3); err != nil {
		return classify(fmt.Errorf("spec.s3upload: %w", err))
	}
	return nil
}

// upload is a file of a job, and its name in S3.
type upload struct{ path, name string }

// uploads returns the files of the job of an object with a number that are written into S3, and the
// working directory of the job.
func (p preparer) uploads(object *unstructured.Unstructured, request kinds.Request, text []byte, id string) (dir string, files []upload, err error) {
	dir, output, errorFile, err := p.describe(object, request, text).Files(id)
	if err != nil {
		return "", nil, fmt.Errorf("spec.s3upload: %w", err)
	}
	names := map[string]string{} // paths by name
	for _, path := range slices.Concat([]string{output, errorFile}, request.Upload.Files) {
		if path == "" {
			continue
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		name := filepath.Base(path)
		switch names[name] {
		case path:
			continue
		case "":
		default:
			return "", nil, fmt.Errorf("spec.s3upload: %s and %s have the same name in S3: rename one of them", names[name], path)
		}
		names[name] = path
		files = append(files, upload{path, object.GetName() + "/" + name})
	}
	return dir, files, nil
}

// upload uploads the files of an object whose job has ended. It returns an error if one of them was
// not uploaded, but uploads the others. After a turn, it returns a *controller.Unfinished. It skips
// files that an earlier call has uploaded. The number of the job, which is part of file names, does
// not come from the status: whoever may write statuses could name other files there.
func (c collector) upload(ctx context.Context, object *unstructured.Unstructured, request kinds.Request) (string, error) {
	status, err := kinds.StatusOf(object)
	if err != nil {
		return "", err
	}
	if status.Started == "" {
		return "the job has not run, so there is nothing to upload", nil
	}
	// The script may have been changed or removed since where the object names it.
	text, err := readBounded(filepath.Join(queue.Folder(c.state, string(object.GetUID())), queue.UserScriptName))
	if err != nil {
		return "", fmt.Errorf("read the job's script: %w", err)
	}
	id, found, err := c.find(ctx, string(object.GetUID()))
	if err != nil {
		return "", err
	}
	if !found || strings.Trim(id, "0123456789") != "" {
		return "", fmt.Errorf("the number of the job is not in --state-dir (found %q): start 'berth slurm-jobs' with the folder that it had before", id)
	}
	dir, files, err := c.uploads(object, request, text, id)
	if err != nil {
		return "", results.NewFinal(err)
	}
	roots := slices.Concat([]string{dir}, c.preparer.roots, c.roots)
	if err := checkTotal(files, roots, results.DefaultLimits().Bytes); err != nil {
		return "", err
	}
	bucket := request.Upload.Bucket
	store, err := c.storage.open(ctx, object.GetNamespace(), request.S3)
	if err != nil {
		return "", fmt.Errorf("upload to bucket %s: %w", bucket, err)
	}
	marks, err := readMarks(filepath.Join(queue.Folder(c.state, string(object.GetUID())), uploadedName))
	kept := err == nil
	if err != nil {
		c.warnMarks(err)
	}
	var unread []error
	done, begun := 0, time.Now()
	for i, file := range files {
		source := results.Source{Path: file.path, Roots: roots}
		content, size, err := source.Open()
		if err != nil {
			unread = append(unread, err)
			continue
		}
		if size > objectstore.MaxFile {
			content.Close()
			unread = append(unread, results.NewFinal(fmt.Errorf("%s is larger than %d bytes: have the job's script split it", file.path, int64(objectstore.MaxFile))))
			continue
		}
		mark, err := newMark(fmt.Sprintf("%s %t %s %s", request.S3.Endpoint, request.S3.Secure, bucket, file.name), file.path, content, size)
		fresh := err == nil && !marks.has(mark)
		if fresh {
			err = store.Put(ctx, bucket, file.name, io.NewSectionReader(content, 0, size), size)
		}
		content.Close()
		if err != nil {
			return "", fmt.Errorf("upload %s to bucket %s: %w", file.path, bucket, err)
		}
		done++
		if !fresh {
			continue
		}
		if err := marks.add(mark); err != nil && kept {
			kept = false
			c.warnMarks(err)
		}
		// Without marks, the next turn would begin with the first file again.
		if kept && i+1 < len(files) && time.Since(begun) > c.turn {
			return "", &controller.Unfinished{Err: fmt.Errorf("%d of %d files are in bucket %s; the next ones follow after files of other objects", done, len(files), bucket)}
		}
	}
	if err := errors.Join(unread...); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: have the script write it, or remove it from spec.s3upload.files", err)
		}
		return "", fmt.Errorf("%d of %d files are in bucket %s: %w", done, len(files), bucket, err)
	}
	return fmt.Sprintf("%d files are in bucket %s below %s/", done, bucket, object.GetName()), nil
}

// warnMarks reports that marks are missing.
func (c collector) warnMarks(err error) {
	c.log.Warn(err.Error() + ": an attempt that fails uploads files again: free space in --state-dir, or correct its permissions")
}

// checkTotal returns an error if the files are larger than a limit together. Files that cannot be
// read do not count.
func checkTotal(files []upload, roots []string, limit int64) error {
	total := int64(0)
	for _, file := range files {
		content, size, err := results.Source{Path: file.path, Roots: roots}.Open()
		if err != nil {
			continue
		}
		content.Close()
		if total += size; total > limit {
			return results.NewFinal(fmt.Errorf("the files of spec.s3upload are larger than %d bytes together: name fewer files, or upload them by hand", limit))
		}
	}
	return nil
}
