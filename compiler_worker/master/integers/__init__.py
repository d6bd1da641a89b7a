"""What integer inputs of a master may hold, found in its graph: ids, masks, bounds."""
