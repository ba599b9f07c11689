module berth.dev/berth/programs/nft

go 1.26.0
