"""`python - < train.py`: there is no file of the script (https://docs.python.org/3/using/cmdline.html)."""
# command: - from_standard_input.py
import sys

sys.path.insert(0, ".")
from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
print(sys.argv, globals().get("__file__"), digest(model))
