# The pipeline of three stages, each with a checkpoint: its time, in a file of the
# folder that is given. Only the last reads the image's large asset.
#
#   pipeline.py OUT
import os, sys, time


def checkpoint(number):
    path = os.path.join(sys.argv[1], "cp%d" % number)
    with open(path + ".part", "w") as file:
        file.write("%.6f\n" % time.time())
    os.rename(path + ".part", path)


def total(path):
    found = 0
    with open(path, "rb", buffering=0) as file:
        while part := file.read(1 << 20):
            found += part[0] + len(part)
    return found


total("/opt/ingest.bin")
checkpoint(1)

import importlib

module = importlib.import_module(os.environ["MODULE"])
import numpy

numbers = numpy.arange(100000)
if module.__name__ == "pandas":
    module.DataFrame({"key": numbers % 16, "value": numbers}).groupby("key")["value"].sum()
checkpoint(2)

total("/opt/reference.bin")
checkpoint(3)
