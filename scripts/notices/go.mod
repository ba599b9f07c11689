module berth.dev/berth/scripts/notices

go 1.26.0

require golang.org/x/mod v0.32.0
