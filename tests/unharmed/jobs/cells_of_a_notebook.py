"""Cells of a notebook: code is compiled cell by cell, one fails, one is interrupted (https://github.com/wandb/wandb/issues/834)."""
import code
import linecache
import signal
import sys

from small import digest

CELLS = ["from small import net, sgd, step, digest", "model = net(); optimizer = sgd(model)",
         "for number in range(4):\n    step(model, optimizer, number)\n", "1 / 0", "model(3)",
         "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(20)",
         "for number in range(4, 9):\n    step(model, optimizer, number)\n", "raise SystemExit(3)", "print(digest(model))"]
space = {"__name__": "__main__"}
console = code.InteractiveInterpreter(space)
console.write = lambda text: print(text.splitlines()[-1])
for number, cell in enumerate(CELLS):
    name = f"<cell {number}>"
    linecache.cache[name] = len(cell), None, cell.splitlines(keepends=True), name
    try:
        console.runcode(compile(cell, name, "exec"))
    except SystemExit as ended:
        print("cell ended", ended.code)
    except KeyboardInterrupt:
        print("interrupted")
sys.excepthook(ValueError, ValueError("shown by the kernel"), None)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, digest(space["model"]))
