"""The web server: what it serves, to whom, and at what cost."""
