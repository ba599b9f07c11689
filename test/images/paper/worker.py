# The ETL worker: its part of the shards of a shared folder, read, aggregated and
# hashed. What it found is written back.
#
#   worker.py FOLDER OUT WORKERS INDEX
import hashlib, importlib, json, os, sys

folder, out, workers, index = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
module = importlib.import_module(os.environ["MODULE"])
import numpy

found = {}
for number, name in enumerate(sorted(os.listdir(folder))):
    if number % workers != index:
        continue
    with open(os.path.join(folder, name), "rb") as shard:
        content = shard.read()
    values = numpy.frombuffer(content, dtype=numpy.uint8)
    if module.__name__ == "pandas":
        frame = module.DataFrame({"key": values % 16, "value": values})
        total = int(frame.groupby("key")["value"].sum().sum())
    else:
        total = int(values.sum())
    found[name] = [total, hashlib.sha256(content).hexdigest()]
with open("/opt/version.txt") as version:
    found["version"] = version.read().strip()
with open(os.path.join(out, "worker-%d.part" % index), "w") as result:
    json.dump(found, result)
os.rename(result.name, os.path.join(out, "worker-%d" % index))
