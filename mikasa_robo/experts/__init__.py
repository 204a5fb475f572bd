"""Scripted policies: an expert for every task, and twins of it that lack memory.

A family's `Skill` knows how its task is done once it is known what has to be remembered. Policies differ in where they
have that from: the expert reads it from the oracle, the twins from what they can still see, remember or have written into
their own posture.
"""
