"""The gate: is a checkpoint good enough to be served in place of the policy that is served now?"""
