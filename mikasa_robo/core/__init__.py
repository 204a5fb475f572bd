"""What every memory task shares: phases, drawing, hiding, touching, rewards, and the environment that joins them.

All modules but `visibility`, `touch` and `env` are pure functions of tensors and need no simulator.
"""
