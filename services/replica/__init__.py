"""A replica: one model version on one device, behind its own data port."""
