"""How many devices a fleet needs: measured curves, a simulated queue, and the cheapest mix."""
