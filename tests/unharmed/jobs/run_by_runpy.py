"""A script that runs another one with `runpy`, as notebooks' `%run` does (https://docs.python.org/3/library/runpy.html)."""
# recorded: any
import runpy
import sys
from pathlib import Path

INNER = """
import sys
from small import digest, net, sgd, step
if __name__ == "__main__":
    model = net()
    optimizer = sgd(model)
    for number in range(int(sys.argv[1])):
        step(model, optimizer, number)
"""
Path("inner.py").write_text(INNER)
sys.argv = ["inner.py", "4"]
from small import digest

for _ in range(2):
    found = runpy.run_path("inner.py", run_name="__main__")
    print(digest(found["model"]), found["__file__"], sys.argv, __name__)
print(sorted(runpy.run_module("inner"))[:3])
