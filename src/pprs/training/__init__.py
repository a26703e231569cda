"""Training of small networks under noise."""
