"""Hypothesis trains a model for each example (https://hypothesis.readthedocs.io/en/latest)."""
# recorded: any
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small import digest, net, sgd, step

seen = []


@settings(derandomize=True, database=None, max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 8), st.integers(0, 3))
def falls(width, seed):
    model = net(seed, width)
    optimizer = sgd(model)
    losses = [step(model, optimizer, 0) for _ in range(3)]
    seen.append(digest(model))
    assert losses[-1] <= losses[0]


falls()
print(len(seen), seen[-1])
