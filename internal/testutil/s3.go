package testutil

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Credentials of each S3Server.
const (
	S3AccessKey = "AKTEST"
	S3SecretKey = "a secret/key+of tests"
)

// S3Server is versitygw, an S3 server over folders. It is killed when the test ends.
type S3Server struct {
	testing.TB
	// Address is the host and the port.
	Address string
	// Folder holds one folder for each bucket.
	Folder  string
	command *exec.Cmd
}

// NewS3Server starts an S3 server without buckets.
func NewS3Server(t testing.TB) *S3Server {
	t.Helper()
	Require(t, S3)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &S3Server{TB: t, Address: listener.Addr().String(), Folder: t.TempDir()}
	listener.Close()
	s.Start()
	t.Cleanup(s.Kill)
	return s
}

// Start starts the server at its address, and waits until it accepts connections.
func (s *S3Server) Start() {
	s.Helper()
	program, err := s3Program()
	if err != nil {
		s.Fatal(err)
	}
	s.command = exec.Command(program, s.Address, s.Folder)
	s.command.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+S3AccessKey, "ROOT_SECRET_KEY="+S3SecretKey)
	s.command.Dir, s.command.Stderr = s.Folder, os.Stderr
	if err := s.command.Start(); err != nil {
		s.Fatal(err)
	}
	Await(s, 30*time.Second, "the S3 server starts", func() error {
		conn, err := net.Dial("tcp", s.Address)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// Kill ends the server. It may be called twice.
func (s *S3Server) Kill() {
	if s.command != nil {
		_ = s.command.Process.Kill()
		_ = s.command.Wait()
		s.command = nil
	}
}

// Write writes an object.
func (s *S3Server) Write(bucket, key, content string) {
	s.Helper()
	path := filepath.Join(s.Folder, bucket, key)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		s.Fatal(err)
	}
}

// Read returns the content of an object.
func (s *S3Server) Read(bucket, key string) string {
	s.Helper()
	content, err := os.ReadFile(filepath.Join(s.Folder, bucket, key))
	if err != nil {
		s.Error(err)
	}
	return string(content)
}

// s3Program returns the path of the server, which 'make -C test/s3server' builds.
func s3Program() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		program := filepath.Join(folder, "test/s3server/out/s3server")
		if _, err := os.Stat(program); err == nil || folder == "/" {
			return program, err
		}
		folder = filepath.Dir(folder)
	}
}
