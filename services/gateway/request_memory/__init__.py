"""Where large requests lie while replicas of this host look at them."""
