"""The one place that talks to status servers."""
