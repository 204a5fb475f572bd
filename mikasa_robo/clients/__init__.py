"""Adapters for other RL libraries. Each module imports its library; importing this package imports none of them."""
