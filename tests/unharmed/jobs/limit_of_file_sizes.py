"""No file may become large, by a limit of the site (man 2 setrlimit: RLIMIT_FSIZE)."""
# recorded: any
# says: training continues
import resource

from small import digest, net, sgd, step

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
model = net()
optimizer = sgd(model)
for number in range(9):
    step(model, optimizer, number)
with open("small", "wb") as file:
    file.write(b"x" * 900)
print(digest(model))
