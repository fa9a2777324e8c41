"""Writes docs/python-api.md: everything that `import distprof` exports, from signatures and docstrings.

python docs/python_api.py
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import distprof

PAGE = Path(__file__).parent / "python-api.md"
SECTIONS = {"Args:": "Arguments", "Returns:": "Returns", "Yields:": "Yields", "Raises:": "Raises"}
"""Section of a docstring -> its title on the page."""

HEAD = """# The Python API

`docs/python_api.py` generates this page from the docstrings of what `import distprof` exports. Importing distprof
does not import torch; the first use of a name that needs torch does. Drop-in replacements for other profilers are in
`distprof.compat` ([Compatibility](compat.md)), framework callbacks in `distprof.integrations`
([Frameworks](frameworks.md)).
"""


def page() -> str:
    """Returns the whole page: functions, then classes."""
    found = {name: getattr(distprof, name) for name in distprof.__all__ if name != "__version__"}
    functions = [name for name in found if not inspect.isclass(found[name])]
    classes = [name for name in found if name not in functions]
    parts = [HEAD]
    for name in functions:
        parts += [f"\n## {name}\n\n", *_call(found[name], f"distprof.{name}")]
    for name in classes:
        parts += [f"\n## {name}\n\n", *_class(found[name])]
    return "".join(parts)


def _call(function: Callable[..., Any], name: str) -> Iterator[str]:
    text = inspect.getdoc(function) or ""
    yield f"```python\n{_signature(function, f'with {name}' if 'Yields:' in text else name)}\n```\n\n"
    yield from _docstring(text)


def _signature(function: Callable[..., Any], name: str) -> str:
    """Returns the signature in one line if it fits, else with one line per parameter."""
    signature = inspect.signature(function)
    parts: list[str] = []
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        if one.name != "self":
            parts.append(_parameter(one))
    returned = "" if name.startswith("with ") else f" -> {_plain(signature.return_annotation)}"
    line = f"{name}({', '.join(parts)}){returned}"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def _parameter(one: inspect.Parameter) -> str:
    stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
    default = "" if one.default is one.empty else f" = {one.default!r}"
    return f"{stars}{one.name}: {_plain(one.annotation)}{default}"


def _plain(annotation: Any) -> str:
    """Returns an annotation, which is a text in our modules, without quotes around names imported only for types."""
    return re.sub(r"^'(.*)'$|^\"(.*)\"$", r"\1\2", str(annotation))


def _class(cls: type) -> Iterator[str]:
    yield from _docstring(inspect.getdoc(cls) or "")
    base = next((base.__name__ for base in cls.__mro__[1:] if base.__name__ in distprof.__all__), None)
    if base:
        yield f"It has everything that [`{base}`](#{base.lower()}) has, and:\n"
    rows = [*_fields(cls), *_properties(cls)]
    if rows:
        yield "\n| attribute | type | meaning |\n|---|---|---|\n"
        yield from (f"| `{name}` | {_type(kind)} | {_one_line(text)} |\n" for name, kind, text in rows)
    for name, method in _methods(cls):
        yield f"\n### {cls.__name__}.{name}\n\n"
        yield from _call(method, name)


def _type(annotation: str) -> str:
    return "`" + annotation.replace(" | ", "` or `") + "`" if annotation else ""


def _fields(cls: type) -> Iterator[tuple[str, str, str]]:
    """Yields annotated attributes: name, annotation and the docstring below it."""
    for base in _public_bases(cls):
        tree = ast.parse(inspect.getsource(base)).body[0]
        assert isinstance(tree, ast.ClassDef)
        for line, following in zip(tree.body, [*tree.body[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id[0] != "_":
                text = following.value if isinstance(following, ast.Expr) else None
                said = text.value if isinstance(text, ast.Constant) else ""
                yield line.target.id, ast.unparse(line.annotation), str(said)


def _properties(cls: type) -> Iterator[tuple[str, str, str]]:
    for name, member in _members(cls):
        getter = member.fget if isinstance(member, property) else getattr(member, "func", None)
        if isinstance(member, (property, cached_property)) and getter is not None:
            yield name, str(inspect.signature(getter).return_annotation), inspect.getdoc(getter) or ""


def _methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, member in _members(cls):
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if inspect.isfunction(function):
            yield name, getattr(cls, name) if isinstance(member, classmethod) else function


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    for base in _public_bases(cls):
        yield from ((name, member) for name, member in vars(base).items() if not name.startswith("_"))


def _public_bases(cls: type) -> list[type]:
    """Returns the class and those of its bases that have no section of their own."""
    bases = [base for base in cls.__mro__ if base.__module__.startswith("distprof")]
    return [base for base in bases if base is cls or base.__name__ not in distprof.__all__]


def _docstring(text: str) -> Iterator[str]:
    """Yields Markdown for a Google style docstring."""
    for block in text.split("\n\n"):
        head, _, rest = block.partition("\n")
        if head in SECTIONS:
            yield f"**{SECTIONS[head]}**\n\n{_entries(rest, named=head in ('Args:', 'Raises:'))}\n"
        elif head == "Example:":
            yield f"```pycon\n{inspect.cleandoc(rest)}\n```\n\n"
        else:
            yield f"{block if block.startswith(' ') else _one_line(block)}\n\n"


def _entries(text: str, *, named: bool) -> str:
    """Returns a list with an item per entry (continuation lines are indented); if not `named`, a paragraph."""
    lines = inspect.cleandoc("\n" + text).splitlines()
    if not named:
        return f"{_one_line(' '.join(lines))}\n"
    entries: list[str] = []
    for line in lines:
        if line.startswith(" "):
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line)
    return "".join(re.sub(r"^(\S+):\s*(.*)", r"* `\1`: \2", entry) + "\n" for entry in entries)


def _one_line(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")
    return re.sub(r"\bdocs/(\S+\.md)", r"[\1](\1)", line)


if __name__ == "__main__":
    PAGE.write_text(page())
