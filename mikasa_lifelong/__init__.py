"""MIKASA-Lifelong: what an agent keeps across tasks, beside what it remembers within an episode.

A stream of tasks is learnt one after another, and every task is measured again after each. Importing this package
registers the mazes with Gymnasium, and loads neither torch nor SAPIEN.

    >>> import mikasa_lifelong
    >>> "split-digits" in mikasa_lifelong.STREAMS
    True
"""

from .catalog import STREAMS, TASKS, StreamRow, TaskRow, find_stream, register
from .errors import LifelongError
from .nav import register_all

__all__ = ["STREAMS", "TASKS", "LifelongError", "StreamRow", "TaskRow", "find_stream", "register"]

register_all()
