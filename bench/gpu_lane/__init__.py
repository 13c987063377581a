"""Everything that only a GPU can show, as one command: see `docs/gpu-lane.md`, or `python -m gpu_lane --help` in bench.

`__main__.py` carries stages out one after the other, each in a process of its own (`child.py`); a stage is a file with a
function `measure`. Nothing at the top of these files imports torch: the process that waits has none.
"""
