"""The command smelt."""
