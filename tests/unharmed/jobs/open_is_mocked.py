"""Tests that train while `open` is a mock, and count who opens what (https://github.com/coveragepy/coveragepy/issues/452)."""
# recorded: any
# telling
import builtins
from pathlib import Path
from unittest import mock

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
opened = []
for number in range(10):
    with mock.patch("builtins.open", mock.mock_open(read_data="0.5")) as fake, \
            mock.patch.object(Path, "read_text", return_value="0.25") as read:
        with open("rates.txt") as file:
            rate = float(file.read()) * float(Path("factor.txt").read_text())
        step(model, optimizer, number)
        opened.append((fake.call_count, [str(call.args[0]) for call in fake.call_args_list], read.call_count))
    print(number, rate, opened[-1], builtins.open is not fake)
print(digest(model))
