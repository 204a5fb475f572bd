"""Learners: how an agent goes from one task to the next. `registry` lists them and loads no torch."""
