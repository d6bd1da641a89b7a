"""How far answers may be from the reference, and how far they are."""
