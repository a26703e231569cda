"""What the rest of the package rests on and what knows nothing of its subject: files, text, parameters, threads."""
