"""Activations and losses must die when the loop lets go of them, without a collection (https://github.com/chr5tphr/zennit/issues/11)."""
# telling
import gc
import weakref

from small import batch, digest, net, sgd

gc.disable()
model = net()
optimizer = sgd(model)
for number in range(9):
    samples, wanted = batch(number)
    inside = []
    handle = model[1].register_forward_hook(lambda module, given, result: inside.append(weakref.ref(result)))
    result = model(samples)
    loss = (result - wanted).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    handle.remove()
    watched = [weakref.ref(one) for one in (samples, wanted, result, loss)] + inside
    del samples, wanted, result, loss
    print(number, [one() is None for one in watched])
print(digest(model))
