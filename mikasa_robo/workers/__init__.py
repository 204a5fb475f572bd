"""Batches that are simulated in several processes; see `mikasa_robo.make_vec`."""
