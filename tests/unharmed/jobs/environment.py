"""Its environment, as it writes it down for reproduction, but for variables of ours (https://github.com/facebookincubator/submitit)."""
# real
import os

OURS = "DISTPROF_", "TORCH_FR_BUFFER_SIZE"  # those of which docs/robustness.md speaks

before = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
    now = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    print(sorted(set(now.items()) ^ set(before.items())))
print(digest(model))
