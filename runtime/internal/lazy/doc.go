// Package lazy makes eStargz layers usable before their content has arrived. The
// table of contents lists the files. Content is requested from the registry when
// it is read, chunk by chunk, and each chunk is checked against its digest. A
// complete layer is a file like any other of package erofs.
//
// If the table of contents is invalid or missing, Make returns an error, and the
// caller pulls the whole layer instead. The package does not mount layers, and
// does not decide which layers are lazy.
//
// Read maker.go first, then index.go and file.go: a layer before and while its content
// arrives. remote.go, transport.go and login.go request content from registries.
// scheduler.go and prioritygate.go decide what is requested next. pull.go and claim.go
// connect layers with images.
package lazy
