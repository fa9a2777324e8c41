"""Shapes of jobs: what the ranks of a step do, and where they meet."""

from support.simulator.maker import Maker, Part, Shape, programs, steps_of
from support.simulator.plant import Plant
from support.simulator.shapes.fixed import LAYERS, SHAPES

__all__ = ["LAYERS", "SHAPES", "Maker", "Part", "Plant", "Shape", "programs", "steps_of"]
