#!/usr/bin/env python3
"""Writes an archive with an image of twelve layers: Python with pandas, and 32,768
small files below /tree, in 352 directories that eleven layers have parts of.

image.py DIRECTORY-OF-IMAGES ARCHIVE
"""
import hashlib
import io
import json
import pathlib
import random
import sys
import tarfile

images, archive = sys.argv[1:]
random.seed(1)


def layer(fill):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        fill(tar)
    return content.getvalue()


def entry(tar, name, content=None, **more):
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    for key, value in more.items():
        setattr(info, key, value)
    if content is not None:
        info.size = len(content)
    tar.addfile(info, content is not None and io.BytesIO(content) or None)


def python(tar):
    tar.add(f"{images}/pandas", arcname=".")
    # Debian's alternatives are links that a maintainer script makes.
    for library in "blas", "lapack":
        for path in pathlib.Path(images, "pandas/usr/lib").glob(f"*/{library}/lib{library}.so.3"):
            entry(tar, f"usr/lib/{path.parts[-3]}/{path.name}", type=tarfile.SYMTYPE, linkname=f"{library}/{path.name}")
    tar.add(f"{images}/busybox/usr/bin/busybox", arcname="usr/bin/busybox")
    entry(tar, "usr/bin/sh", type=tarfile.SYMTYPE, linkname="busybox")
    entry(tar, "tmp", type=tarfile.DIRTYPE, mode=0o1777)


def files(part):
    def fill(tar):
        for at in range(part, 32768, 11):
            size = int(random.lognormvariate(7.8, 1.2)) % 30000
            entry(tar, f"tree/d{at % 32:02}/s{part}/f{at}", random.randbytes(size))

    return fill


layers = [layer(python)] + [layer(files(part)) for part in range(11)]
config = json.dumps({
    "architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/usr/bin:/bin"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(l).hexdigest() for l in layers]},
})
names = [f"layer{n}.tar" for n in range(len(layers))]
with tarfile.open(archive, "w") as tar:
    entry(tar, "config.json", config.encode())
    for name, content in zip(names, layers):
        entry(tar, name, content)
    entry(tar, "manifest.json", json.dumps([{"Config": "config.json", "RepoTags": ["tree:1"], "Layers": names}]).encode())
