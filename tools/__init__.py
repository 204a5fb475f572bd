"""The commands of ``mikasa``; installed as ``mikasa_robo.tools``. Nothing else imports them."""
