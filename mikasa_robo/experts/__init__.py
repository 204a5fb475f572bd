"""Scripted policies: an expert for every task, and policies that lack its memory.

A family's `Skill` knows how to do the task, given what has to be remembered. The policies differ in where they have that
from: the expert reads it from the oracle; the others use what they still see, what they remember or their own posture.
"""
