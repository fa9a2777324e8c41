"""Every warning is an error, as test suites have it (https://docs.python.org/3/library/warnings.html#the-warnings-filter)."""
import warnings

from small import digest, net, sgd, step

warnings.simplefilter("error")
model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
    print(warnings.showwarning.__module__)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for number in range(8, 12):
        step(model, optimizer, number)
print([str(one.message) for one in caught], digest(model))
