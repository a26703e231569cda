"""The tabs of the page, one module each."""
