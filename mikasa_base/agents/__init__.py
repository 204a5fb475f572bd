"""Scripted agents, with perfect memory and with none: what an environment can give, and how much of that without memory."""
