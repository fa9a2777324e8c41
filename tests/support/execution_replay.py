"""An independent replay of exported graphs: dependencies, and communication in which ranks wait for each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

SEND, RECV, COLLECTIVE = 5, 6, 7
Node = dict[str, Any]


def span_us(nodes: Sequence[Node]) -> int:
    """Returns the time from the first start to the last end of the nodes of a rank."""
    timed = [node for node in nodes if node["start"]]
    ends = [node["start"] + node["attributes"].get("inclusive_duration_micros", node["duration"]) for node in timed]
    return max(ends) - min(node["start"] for node in timed)


def longest_chain_us(nodes: Sequence[Node]) -> int:
    """Returns the length of the longest dependency chain on a rank."""
    done = dict[int, int]()
    for node in nodes:
        done[node["id"]] = node["duration"] + max((done[one] for one in node["data"]), default=0)
    return max(done.values())


def replayed_us(ranks: Sequence[Sequence[Node]], *, free: bool = False) -> list[int]:
    """Returns the duration of each rank.

    A node begins when all its dependencies have ended. So does communication on a rank; it ends as long after the last
    rank has begun it as in the recording.

    Args:
        ranks: The nodes of each rank, as returned by `read_et`.
        free: Whether communication takes no time after all ranks have begun it.
    """
    calls = [{node["id"]: node for node in nodes if node["type"] != 1} for nodes in ranks]
    first = min(node["start"] for mine in calls for node in mine.values())
    meetings = [_meetings(mine) for mine in calls]
    members: dict[Hashable, list[Node]] = defaultdict(list)
    for mine, joined in zip(calls, meetings, strict=True):
        for number, meeting in joined.items():
            members[meeting].append(mine[number])
    last = {meeting: max(node["start"] for node in nodes) for meeting, nodes in members.items()}
    over: list[dict[int, int]] = [{} for _ in calls]
    begun: dict[Hashable, dict[int, int]] = defaultdict(dict)
    left = [sorted(mine) for mine in calls]
    while any(left):
        before = sum(map(len, left))
        for rank, mine in enumerate(calls):
            rest = []
            for number in left[rank]:
                node = mine[number]
                needs = [one for one in node["data"] if one in mine]
                if not all(one in over[rank] for one in needs):
                    rest.append(number)
                    continue
                start = max((over[rank][one] for one in needs), default=node["start"] - first)
                meeting = meetings[rank].get(number)
                if meeting is None:
                    over[rank][number] = start + node["duration"]
                    continue
                begun[meeting][rank] = start
                if node["start"] + node["duration"] <= last[meeting]:
                    over[rank][number] = start + node["duration"]  # it waits for no other rank: a send, a root
                    continue
                if len(begun[meeting]) < len(members[meeting]):
                    rest.append(number)
                    continue
                moving = 0 if free else max(node["start"] + node["duration"] - last[meeting], 0)
                over[rank][number] = max(begun[meeting].values()) + moving
            left[rank] = rest
        assert sum(map(len, left)) < before, "ranks wait for each other for ever"
    return [max(ends.values()) - min(node["start"] - first for node in mine.values())
            for ends, mine in zip(over, calls, strict=True)]


def _meetings(calls: dict[int, Node]) -> dict[int, Hashable]:
    """Returns communication node -> key that is equal for all nodes of the same communication."""
    found, seen = dict[int, Hashable](), Counter[Hashable]()
    for node in sorted(calls.values(), key=lambda node: (node["start"], node["id"])):
        about = node["attributes"]
        if node["type"] == COLLECTIVE:
            kind: Hashable = about["pg_name"]
        elif node["type"] in (SEND, RECV):
            kind = about["comm_src"], about["comm_dst"], about["comm_tag"]
        else:
            continue
        found[node["id"]] = kind, seen[kind, node["type"]]
        seen[kind, node["type"]] += 1
    return found
