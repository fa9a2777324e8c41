"""cProfile and tracemalloc of its own code (https://docs.python.org/3/library/profile.html)."""
import cProfile
import pstats
import tracemalloc

from small import digest, net, sgd, step

tracemalloc.start()
model = net()
optimizer = sgd(model)
profile = cProfile.Profile()
for number in range(8):
    with profile:
        step(model, optimizer, number)
stats = pstats.Stats(profile).stats
print(sorted((name, calls) for (file, _, name), (calls, *_) in stats.items() if file == step.__code__.co_filename))
print(tracemalloc.is_tracing(), tracemalloc.get_traceback_limit(), digest(model))
