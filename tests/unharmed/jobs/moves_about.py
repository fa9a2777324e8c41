"""It changes folder, umask, locale, recursion limit and switch interval while it trains (https://docs.python.org/3/library/os.html#os.chdir)."""
import os
import sys
from pathlib import Path

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    Path(f"epoch{number}").mkdir() if number < 6 else None
    os.chdir(f"epoch{number}" if number < 6 else "/")
    step(model, optimizer, number)
    Path("weights").write_text(digest(model)) if number < 6 else None
    print(oct(os.umask(0o022)), sys.getrecursionlimit(), sys.getswitchinterval(), Path.cwd().name)
    sys.setrecursionlimit(900 + number)
    sys.setswitchinterval(0.01)
    if number == 5:
        sys.path.clear()
print(digest(model))
