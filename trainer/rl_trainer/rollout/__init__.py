"""Samplers: from a ticket to a scored group, and the fleet of them."""
