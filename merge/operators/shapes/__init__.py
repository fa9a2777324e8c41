"""FLOPs and bytes of operators, by the shapes in timelines."""
