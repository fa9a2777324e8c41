"""Few open files are allowed, and it uses those that are left (https://docs.python.org/3/library/resource.html)."""
import resource
import tempfile

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
step(model, optimizer, 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = [tempfile.TemporaryFile() for _ in range(20)]
for number in range(1, 9):
    step(model, optimizer, number)
print(len({one.fileno() for one in held}), digest(model))
