"""`sys.excepthook` of its own writes a report of the crash, and calls the one before (https://github.com/wandb/wandb/issues/9526)."""
# ends: 1
# recorded: partial
# telling
import json
import sys
import traceback
from pathlib import Path

from small import net, sgd, step

before = sys.excepthook
print("as Python has it:", before is sys.__excepthook__)


def report(kind, error, trace):
    Path("crash.json").write_text(json.dumps({
        "kind": kind.__name__, "what": str(error), "frames": [one.name for one in traceback.extract_tb(trace) if one.filename == __file__]}))
    before(kind, error, trace)


sys.excepthook = report
model = net()
optimizer = sgd(model)
print("as Python has it:", before is sys.__excepthook__, sys.excepthook is report)
for number in range(9):
    step(model, optimizer, number)
    if number == 2:
        raise FloatingPointError("loss is nan")
