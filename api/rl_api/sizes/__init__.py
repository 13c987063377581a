"""How much memory each role of a run needs, before anything starts: arithmetic over a model's shape. Pure, without torch."""
