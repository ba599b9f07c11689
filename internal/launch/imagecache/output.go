package imagecache

import "time"

// Line is one line of JSON that berth-images prints about the image cache. The module of
// berth-images compiles this file, too.
type Line struct {
	Image *Image `json:"image,omitempty"`
	// Progress is the number of bytes received and their total.
	Progress *[2]int64 `json:"progress,omitempty"`
	Warning  string    `json:"warning,omitempty"`
	Sum      *Sum      `json:"sum,omitempty"`
	Error    string    `json:"error,omitempty"`
	// NoSpace is set if the reason of the error is a full disk or a quota.
	NoSpace bool `json:"noSpace,omitempty"`
}

// Image is an image in the cache.
type Image struct {
	Name     string `json:"name"`
	Digest   string `json:"digest"`
	Platform string `json:"platform"`
	// Bytes is the size of the layers that are in the cache.
	Bytes  int64 `json:"bytes"`
	Layers int   `json:"layers"`
	// Missing is the number of layers that are not in the cache.
	Missing int       `json:"missing"`
	Time    time.Time `json:"time"`
	// Freed is the number of bytes that the removal of the image freed.
	Freed int64 `json:"freed,omitempty"`
}

// Sum summarizes the cache at the end of a command.
type Sum struct {
	Layers  int   `json:"layers"`
	Bytes   int64 `json:"bytes"`
	Freed   int64 `json:"freed"`
	Damaged int   `json:"damaged"`
}
