# Makes out/NAME.tar, the image archive of a program that is built beside NAME.image.
# The including Makefile has the rule for out/bin/NAME.

ARCH    ?= $(shell go env GOARCH)
OUT     := out
MKIMAGE := ../images/out/mkimage
export CGO_ENABLED := 0
export GOFLAGS     := -trimpath -buildvcs=false

.PHONY: all clean FORCE
all: $(patsubst %.image,$(OUT)/%.tar,$(wildcard *.image))

$(MKIMAGE): FORCE
	$(MAKE) -C ../images out/mkimage

$(OUT)/%.tar: %.image $(OUT)/bin/% $(MKIMAGE) FORCE
	$(MKIMAGE) -C $(OUT) -arch $(ARCH) -o $@ $<

clean:
	rm -rf $(OUT)
