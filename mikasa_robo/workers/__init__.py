"""Batches of environments that several processes simulate; see ``num_workers`` of `mikasa_robo.make_env`."""
