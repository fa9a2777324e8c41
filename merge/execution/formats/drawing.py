"""Writes execution traces as graphs for other programs: dot, GraphML, and SVG through graphviz."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TextIO
from xml.sax.saxutils import escape, quoteattr

from distprof.errors import OutputError
from distprof.files import told, write_whole
from distprof.merge.execution.formats.chakra import ChakraNode, NodeType

COLOURS = {NodeType.COMM_COLL: "#f4a582", NodeType.COMM_SEND: "#f4a582", NodeType.COMM_RECV: "#f4a582",
           NodeType.COMP: "#d1e5f0", NodeType.METADATA: "#eeeeee"}
LONGEST = 60
"""Maximum number of characters of a name."""


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[:LONGEST - 1]}\u2026"


def write_dot(file: TextIO, nodes: Iterable[ChakraNode]) -> None:
    """Writes the graph in the dot language: solid arrows for data dependencies, dotted ones from enclosing calls."""
    file.write('digraph execution {\n  node [shape=box, style=filled, fontname="sans-serif"];\n')
    for node in nodes:
        label = _short(node.name).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        time = f"\\n{node.duration_us} us" if node.duration_us else ""
        file.write(f'  {node.id} [label="{label}{time}", fillcolor="{COLOURS[node.type]}"];\n')
        file.writelines(f"  {one} -> {node.id};\n" for one in node.data)
        file.writelines(f"  {one} -> {node.id} [style=dotted];\n" for one in node.control if one not in node.data)
    file.write("}\n")


def write_graphml(file: TextIO, nodes: Iterable[ChakraNode]) -> None:
    """Writes GraphML; edges have the `kind` data or control."""
    keys = {"name": "string", "type": "string", "start_us": "long", "duration_us": "long"}
    file.write('<?xml version="1.0" encoding="utf-8"?>\n<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n')
    file.writelines(f'<key id="{name}" for="node" attr.name="{name}" attr.type="{kind}"/>\n'
                    for name, kind in keys.items())
    file.write('<key id="kind" for="edge" attr.name="kind" attr.type="string"/>\n<graph edgedefault="directed">\n')
    for node in nodes:
        values = {"name": node.name, "type": node.type.name, "start_us": node.start_us,
                  "duration_us": node.duration_us}
        data = "".join(f'<data key="{key}">{escape(_xml(str(value)))}</data>' for key, value in values.items())
        file.write(f"<node id={quoteattr(str(node.id))}>{data}</node>\n")
        for kind, ids in (("data", node.data), ("control", node.control)):
            file.writelines(f'<edge source="{one}" target="{node.id}"><data key="kind">{kind}</data></edge>\n'
                            for one in ids)
    file.write("</graph>\n</graphml>\n")


def _xml(text: str) -> str:
    """Replaces characters that XML cannot contain with spaces."""
    return "".join(one if one >= " " or one in "\t\n" else " " for one in text)


WRITERS: Mapping[str, Callable[[TextIO, Iterable[ChakraNode]], None]] = {"dot": write_dot, "graphml": write_graphml}


def write_graph(path: Path, form: str, nodes: Callable[[], Iterable[ChakraNode]]) -> None:
    """Writes the graph of a rank.

    Args:
        path: The file.
        form: dot, graphml or svg.
        nodes: Returns the nodes.

    Raises:
        OutputError: The file cannot be written, or graphviz is missing or fails.
    """
    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            WRITERS["dot" if form == "svg" else form](file, nodes())
        if form == "svg":
            _draw(temporary)

    if form == "svg" and shutil.which("dot") is None:
        raise OutputError("--format svg needs the program dot",
                          hint="apt-get install graphviz; or use --format graphml")
    with told(path):
        write_whole(path, write)


def _draw(path: Path) -> None:
    drawn = subprocess.run(["dot", "-Tsvg", str(path)], capture_output=True, check=False)
    if drawn.returncode:
        why = drawn.stderr.decode("utf-8", "replace").strip().splitlines()
        raise OutputError(f"dot failed with status {drawn.returncode}: {why[-1] if why else 'no reason given'}",
                          hint="use --format graphml instead")
    path.write_bytes(drawn.stdout)
