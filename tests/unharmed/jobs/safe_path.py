"""PYTHONSAFEPATH: the folder of the script is not looked into, and entries of the path are its own (https://docs.python.org/3/using/cmdline.html#envvar-PYTHONSAFEPATH)."""
# environ: PYTHONSAFEPATH=1
# real
import os
import sys

before = [one for one in sys.path if "site-packages" not in one and os.path.exists(one)]
try:
    import small
except ImportError as error:
    print(error)
sys.path.append(os.getcwd())
from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
print(sys.flags.safe_path, os.getcwd() in before, sys.path.count(os.getcwd()), sys.path[-1] == os.getcwd(), digest(model))
