"""How a scene is simulated and drawn: the choice of backend, batched CPU physics, and the check of the renderer.

Knows ManiSkill and SAPIEN only; nothing here knows what a memory task is.
"""
