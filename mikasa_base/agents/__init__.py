"""Scripted agents with perfect memory and without memory. Their scores show how much of a task needs memory."""
