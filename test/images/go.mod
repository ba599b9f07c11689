module berth.dev/berth/test/images

go 1.26.0

require (
	github.com/google/go-containerregistry v0.22.1
	github.com/sylabs/sif/v2 v2.24.2
)

require (
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/klauspost/compress v1.19.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
)
