"""The example of docs/cluster.md, as far as it can be run without a Kubernetes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from support.jobs import ROOT

operator = pytest.importorskip("dask_kubernetes.operator")


def test_the_example_makes_pods_with_the_volume() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    code = next(block.partition("\n```")[0] for block in page.split("```python\n") if "make_cluster_spec" in block)
    before, connecting = code.split("cluster = KubeCluster(")
    made: dict[str, Any] = {}
    exec(before, made)
    spec = made["spec"]
    assert (spec["kind"], spec["spec"]["worker"]["replicas"]) == ("DaskCluster", 16)
    for part in (spec["spec"]["worker"]["spec"], spec["spec"]["scheduler"]["spec"]):
        volume, = part["volumes"]
        assert [mount["name"] for mount in part["containers"][0]["volumeMounts"]] == [volume["name"]] == ["runs"]
        assert part["containers"][0]["image"] == "registry/with-distprof:0.1.0"
    assert connecting.startswith("custom_cluster_spec=spec)")
    inspect.signature(operator.KubeCluster).bind(custom_cluster_spec=spec)
