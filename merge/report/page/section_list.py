"""Lists the sections of the page in their order: the title, description and drawing function of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the page.

    Attributes:
        id: Its anchor, and the name by which findings refer to it.
        title: Its heading.
        about: A sentence below the heading.
        needs: Keys of the document, at least one of which must have data; a section without any is always shown.
        template: The template of its plain HTML part.
        view: The function in `scripts/views.js` that draws the rest.
        always: Whether it is shown even without data, with the reason.
        absent: Why there is nothing to show.
    """

    id: str
    title: str
    about: str = ""
    needs: tuple[str, ...] = ()
    template: str | None = None
    view: str | None = None
    always: bool = True
    absent: str | None = None


SECTIONS = (
    Section(id="findings", title="Findings", template="sections/findings.html"),
    Section(
        id="blame",
        title="Who is late",
        about="Ranks that others wait for, and what that costs.",
        needs=("blame", "hang"),
        template="sections/blame.html",
    ),
    Section(
        id="whole_job",
        title="Whole job",
        about="Step time of all ranks in the steps that were not recorded, and the findings about them.",
        needs=("whole_job",),
        view="whole_job",
    ),
    Section(
        id="steps",
        title="Steps",
        about="Where each rank spends the time of a step.",
        needs=("step_parts", "heat_map"),
        view="steps",
    ),
    Section(
        id="collectives",
        title="Collectives",
        about="When each rank arrived at a collective, how long it waited there, and how long data moved.",
        needs=("collectives", "collective_kinds"),
        view="collectives",
    ),
    Section(
        id="bandwidths",
        title="Bandwidth",
        about="Bandwidth of collectives by size.",
        needs=("bandwidths",),
        view="bandwidths",
    ),
    Section(
        id="modules",
        title="Modules",
        about="What each module of the model costs per GPU, including its submodules.",
        needs=("modules",),
        view="modules",
    ),
    Section(
        id="operators",
        title="Operators",
        about="Operators that take the most time, over all ranks and traced steps.",
        needs=("operators",),
        view="operators",
    ),
    Section(
        id="memory",
        title="Memory",
        about="Peak memory of each rank, and allocations during the memory pass.",
        needs=("memory", "peak_memory"),
        view="memory",
    ),
    Section(
        id="pipeline",
        title="Pipeline",
        about="Pipeline stages: work, and waiting for messages.",
        needs=("pipeline",),
        always=False,
        template="sections/pipeline.html",
    ),
    Section(
        id="waits",
        title="Host",
        about="Lines of the script that take the most time, and where Python waited for a device, a file or another "
              "process.",
        needs=("waits", "script_lines"),
        view="waits",
    ),
    Section(
        id="critical_path",
        title="Critical path",
        about="The longest chain of work and communication over all ranks, or of launches, kernels and the host's work "
              "on a device where no rank waits for another. A step gets shorter only if something on it does.",
        needs=("critical_path",),
        view="critical_path",
    ),
    Section(
        id="totals",
        title="Totals",
        about="Parameters and computation of the model, per GPU and in total.",
        needs=("totals",),
        template="sections/totals.html",
    ),
    Section(
        id="clock",
        title="Clock",
        about="How the ranks' clocks were aligned.",
        needs=("clock",),
        template="sections/clock.html",
        view="clock",
    ),
    Section(id="missing", title="What is missing", template="sections/missing.html"),
)


def sections(document: Mapping[str, Any]) -> Iterator[Section]:
    """Yields the sections of a document; one without data says why, or is left out if nobody expects it."""
    for section in SECTIONS:
        if not section.needs or any(document[key] for key in section.needs):
            yield section
        elif not section.always:
            continue
        elif why := next((document["absent"][key] for key in section.needs if key in document["absent"]), None):
            yield _without_data(section, why)


def _without_data(section: Section, why: str) -> Section:
    return Section(id=section.id, title=section.title, about=section.about, absent=why)
