"""A Ray that is started for one run: without what such a run does not need, and with workers that start fast."""
