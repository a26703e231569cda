"""The one error type of the package, and the words that help a person out of it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PprsError(Exception):
    """Something the caller can put right. The message names the cause and the remedy."""


class WrongSettings(PprsError):
    """What no image is to blame for: it ends a run, where other errors only fail an image."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A sentence that lists what there is and suggests what was probably meant.

    >>> nearest("slick", ["slic", "grid"])
    'Did you mean "slic"? There are: grid, slic.'
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    hint = f'Did you mean "{close[0]}"? ' if close else ""
    return f"{hint}There are: {', '.join(names)}."
