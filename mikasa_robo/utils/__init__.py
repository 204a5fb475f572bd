"""What is useful around the tasks without being part of them; ``mikasa_robo.utils.wrappers`` holds the wrappers."""
