"""Which devices a run's roles share, when, and in what pieces: profile, costs, planner, simulator. Pure, without torch."""
