// Package imagecache adds images from registries and archives to the folder that
// runs share. It needs no cluster. Package layercache keeps the folder, and package
// layerfile makes the files in it.
//
// Read populator.go first: it puts an image into the cache. registry.go pulls images, and
// resume.go continues an interrupted download; archive.go imports archives. export.go and
// convert.go write images to archives, with layout.go, and bundle.go writes an image as
// an OCI bundle. output.go has the lines that berth-images prints for other programs.
package imagecache
