"""A search makes model after model, and each must be gone with its optimizer (https://github.com/pytorch/pytorch/issues/63211)."""
import gc
import weakref

from small import digest, net, sgd, step

gone = []
for trial in range(9):
    model = net(seed=trial)
    optimizer = sgd(model)
    step(model, optimizer, trial)
    print(trial, digest(model))
    gone.append((weakref.ref(model), weakref.ref(optimizer), weakref.ref(model[0].weight)))
    del model, optimizer
    gc.collect()
print([[one() is None for one in each] for each in gone[:-1]])
