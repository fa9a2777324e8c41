"""Hooks write statistics of activations and gradients to SQLite and CSV (https://github.com/arsenyinfo/hookandlook/issues/1)."""
import csv
import sqlite3

from small import digest, net, sgd, step

base = sqlite3.connect("stats.db", isolation_level=None)
base.execute("create table stats (step int, name text, kind text, mean real)")
rows = csv.writer(open("stats.csv", "w"))
model = net()
optimizer = sgd(model)
now = 0
import warnings

warnings.simplefilter("ignore")
for name, module in model.named_modules():
    module.register_forward_hook(lambda m, i, o, name=name: base.execute(
        "insert into stats values (?, ?, ?, ?)", (now, name, "forward", o.mean().item())) and None)
    module.register_full_backward_hook(lambda m, i, o, name=name: rows.writerow(
        [now, name, o[0].mean().item()]) and None)
for now in range(9):
    step(model, optimizer, now)
print(base.execute("select count(*), sum(mean) from stats").fetchall(), digest(model))
base.close()
