"""It looks at what Python's imports are made of, and has a finder of its own (https://docs.python.org/3/reference/import.html#the-meta-path)."""
# real
import importlib.abc
import sys
import types


class Made(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    asked = []

    def find_spec(self, name, path=None, target=None):
        if name == "made_up":
            return importlib.util.spec_from_loader(name, self)
        return None

    def exec_module(self, module):
        module.answer = 42


sys.meta_path.insert(0, Made())

from small import digest, net, sgd, step

import made_up

model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
main = sys.modules["__main__"]
print(made_up.answer, isinstance(sys.meta_path[0], Made), main.__name__, main.__dict__ is globals(), main.__spec__,
      isinstance(main, types.ModuleType), sys.argv, sorted(name for name in globals() if name.startswith("__")))
print(digest(model))
