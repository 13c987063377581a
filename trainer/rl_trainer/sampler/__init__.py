"""Samplers: engines that generate tokens, and the actors that turn them into scored groups."""
