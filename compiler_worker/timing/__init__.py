"""How fast engines are, alone and beside each other."""
