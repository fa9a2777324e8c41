"""Models and optimizers are copied between steps, and training goes on with the copies (https://github.com/VainF/Torch-Pruning/issues/374)."""
import copy

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
kept = []
for number in range(9):
    step(model, optimizer, number)
    model, optimizer = copy.deepcopy((model, optimizer))
    kept.append(copy.deepcopy(model).eval())
    print(number, sorted(vars(optimizer)), sorted(vars(model[0])), digest(kept[-1]))
print(optimizer.param_groups[0]["params"][0] is model[0].weight, digest(model))
