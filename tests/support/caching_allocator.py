"""Simulates the CUDA caching allocator without a device, and the snapshots that torch writes.

Sizes are rounded, segments requested, and blocks split and merged as torch's allocator does by default; the snapshot
has the keys, their order and the sharing of objects of `torch.cuda.memory._snapshot()`.
"""

from __future__ import annotations

import itertools
from collections import deque

SMALL, LARGE, SMALL_SEGMENT, LARGE_SEGMENT = 1 << 20, 10 << 20, 2 << 20, 20 << 20


class OutOfMemory(Exception):
    pass


class Block:
    def __init__(self, address, size, segment):
        self.address, self.size, self.segment = address, size, segment
        self.requested, self.state, self.frames = 0, "inactive", []


class Segment:
    def __init__(self, address, size, is_large, stream, frames):
        self.address, self.size, self.is_large, self.stream, self.frames = address, size, is_large, stream, frames
        self.blocks = [Block(address, size, self)]


class Allocator:
    """The allocator of one device; `frames` are stacks as in torch's snapshots: shared dicts in a new list per call."""

    def __init__(self, device=0, total=80 << 30, max_entries=1 << 62):
        self.device, self.total = device, total
        self.segments, self.live, self.trace = [], {}, deque(maxlen=min(max_entries, 1 << 40))
        self.clock, self._next = itertools.count(1_700_000_000_000_000, 7), 0x7F00_0000_0000 + (device << 36)
        self.allocated = self.requested = self.reserved = self.peak_requested = 0

    def alloc(self, size, frames=(), stream=0):
        rounded, frames = max(-(-size // 512) * 512, 512), list(frames)
        is_large = rounded > SMALL
        block = self._best(rounded, is_large, stream) or self._new(rounded, is_large, stream, frames, size)
        if block.size - rounded >= (512 if not is_large else SMALL + 1):
            rest = Block(block.address + rounded, block.size - rounded, block.segment)
            block.segment.blocks.insert(block.segment.blocks.index(block) + 1, rest)
            block.size = rounded
        block.requested, block.state, block.frames = size, "active_allocated", frames
        self.live[block.address] = block
        self.allocated, self.requested = self.allocated + block.size, self.requested + size
        self.peak_requested = max(self.peak_requested, self.requested)
        self._note("alloc", block.address, size, stream, frames)
        return block.address

    def free(self, address, frames=(), *, wait=False):
        """Frees a block; with `wait`, another stream still uses it, and `complete` has to follow."""
        block, frames = self.live.pop(address), list(frames)
        self.allocated, self.requested = self.allocated - block.size, self.requested - block.requested
        self._note("free_requested", address, block.requested, block.segment.stream, frames)
        block.state = "active_pending_free"
        if not wait:
            self.complete(block, frames)
        return block

    def complete(self, block, frames=()):
        self._note("free_completed", block.address, block.requested, block.segment.stream, list(frames))
        block.state, block.requested, block.frames = "inactive", 0, []
        blocks = block.segment.blocks
        place = blocks.index(block)
        for other in (place + 1, place - 1):
            if 0 <= other < len(blocks) and blocks[other].state == "inactive" and blocks[other] is not block:
                left, right = sorted((block, blocks[other]), key=lambda one: one.address)
                left.size += right.size
                blocks.remove(right)
                block = left
                place = blocks.index(block)

    def empty_cache(self):
        for segment in [one for one in self.segments if len(one.blocks) == 1 and one.blocks[0].state == "inactive"]:
            self.segments.remove(segment)
            self.reserved -= segment.size
            self._note("segment_free", segment.address, segment.size, segment.stream, [])

    def _best(self, size, is_large, stream):
        fit = [block for segment in self.segments if segment.is_large == is_large and segment.stream == stream
               for block in segment.blocks if block.state == "inactive" and block.size >= size]
        return min(fit, key=lambda block: (block.size, block.address), default=None)

    def _new(self, size, is_large, stream, frames, asked):
        num_bytes = SMALL_SEGMENT if not is_large else LARGE_SEGMENT
        if size >= LARGE:
            num_bytes = -(-size // (2 << 20)) * (2 << 20)
        if self.reserved + num_bytes > self.total:
            self.empty_cache()
        if self.reserved + num_bytes > self.total:
            self._note("oom", self.total - self.reserved, asked, stream, frames)
            raise OutOfMemory
        segment = Segment(self._next, num_bytes, is_large, stream, frames)
        self._next += num_bytes + (2 << 20)
        self.segments.append(segment)
        self.reserved += num_bytes
        self._note("segment_alloc", segment.address, num_bytes, stream, frames)
        return segment.blocks[0]

    def _note(self, action, address, size, stream, frames):
        self.trace.append({
            "action": action, "device_free" if action == "oom" else "addr": address, "size": size, "stream": stream,
            "time_us": next(self.clock), "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0),
            "frames": frames})


def snapshot(*allocators):
    """Returns the snapshot that torch would make of all devices."""
    return {"segments": [_segment(one, allocator.device) for allocator in allocators for one in allocator.segments],
            "device_traces": [list(allocator.trace) for allocator in allocators],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
                "expandable_segments": False, "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": False,
                "pinned_use_cuda_host_register": False, "roundup_power2_divisions": {"1": 0, "2": 0}},
            "external_annotations": [{"stage": stage, "name": "step", "device": 0, "time_us": 1} for stage in (
                "START", "END")]}


def _segment(segment, device):
    active = [block for block in segment.blocks if block.state != "inactive"]
    held = [block for block in active if block.state == "active_allocated"]
    return {"device": device, "address": segment.address, "total_size": segment.size,
            "allocated_size": sum(block.size for block in held), "active_size": sum(block.size for block in active),
            "requested_size": sum(block.requested for block in active), "stream": segment.stream,
            "segment_type": "large" if segment.is_large else "small", "segment_pool_id": (0, 0),
            "is_expandable": False, "frames": segment.frames, "blocks": [
                {"address": block.address, "size": block.size, "requested_size": block.requested, "state": block.state,
                 "frames": block.frames} for block in segment.blocks]}


class Frames:
    """Creates each frame of a program once, as a dict with its own strings."""

    def __init__(self):
        self._known = {}

    def __call__(self, *places):
        """Returns the frames of places, innermost first, each (file, line, function)."""
        return [self._known.setdefault(place, dict(zip(("name", "filename", "line"), (
            "".join(place[2]), "".join(place[0]), place[1]), strict=True))) for place in places]


TORCH = "/opt/venv/lib/python3.11/site-packages/torch/nn/modules"


def trained(allocator, *, steps=3, layers=6, size=3_000_001, frames=None):
    """Simulates a training loop: weights, activations kept for backward, gradients, temporaries of two streams."""
    frames = frames or Frames()
    outer = ((f"{TORCH}/module.py", 1775, "_call_impl"), ("/home/me/job/train.py", 80, "main"),
             ("/home/me/job/train.py", 99, "<module>"))

    def at(line, function, inner=("linear.py", 125, "forward")):
        return frames((f"{TORCH}/{inner[0]}", *inner[1:]), ("/home/me/job/net.py", line, function), *outer)

    weights = [allocator.alloc(size + 4 * layer, at(10, "__init__")) for layer in range(layers)]
    gradients = []
    for step in range(steps):
        kept = []
        for layer in range(layers):
            kept.append(allocator.alloc(size * 2 + 100 * layer, at(20 + layer, "forward")))
            scratch = allocator.alloc(size // 7, at(40, "scratch"), stream=0)
            allocator.free(scratch, at(41, "scratch"))
        for layer in reversed(range(layers)):
            side = allocator.alloc(70_000 + step, frames(("??", 0, "c10d::allreduce")), stream=77)
            if step == 0:
                gradients.append(allocator.alloc(size + 4 * layer, at(50, "backward")))
            allocator.free(kept.pop(), at(51, "backward"))
            block = allocator.free(side, wait=True)
            allocator.complete(block)
    return weights, gradients
