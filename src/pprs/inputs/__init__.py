"""What is certified: images and signals, and the pixels in which changes are measured."""
