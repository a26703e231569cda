"""The contract of model sources."""

from __future__ import annotations

import contextlib
import pickle
import shutil
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt
import pytest
import torch

from pprs.errors import PprsError
from pprs.model import Model, Source

Array = npt.NDArray[Any]
Shape = tuple[int, int, int]


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


class ModelSourceContract(ABC):
    """What every source of models promises: the same classifier each time, in [0, 1] images, out scores."""

    source: ClassVar[type[Source]]  # set it to the class under test
    input_shape: ClassVar[Shape] = (3, 32, 32)  # used where the model does not know its own

    @abstractmethod
    def make_spec(self, folder: Path) -> str:
        """Return the text that names a model, after writing its files to this empty folder where it has any."""

    def test_claims_its_own_text_only(self, tmp_path: Path) -> None:
        spec = self.make_spec(tmp_path)
        assert self.source.claims(spec) is True, f'claims("{spec}") must be True'
        for other in ("", "no such kind of model!", "efficientnet-lite0" if "lite0" not in spec else "a b"):
            assert self.source.claims(other) is False, f'claims("{other}") must be False: it is not its own'

    def test_load_gives_a_model_that_knows_its_text(self, tmp_path: Path) -> None:
        spec = self.make_spec(tmp_path)
        model = self.source.load(spec)
        assert isinstance(model, Model), f"load() must return a pprs.Model, not a {type(model).__name__}"
        assert isinstance(model.module, torch.nn.Module), "the model's module must be a torch.nn.Module"
        assert model.source == spec, f'source must be the text "{spec}", not "{model.source}"'
        for name, names in (("class_names", model.class_names), ("class_ids", model.class_ids)):
            if names is not None and model.num_classes is not None:
                assert len(names) == model.num_classes, f"{len(names)} {name} for {model.num_classes} classes"

    def test_scores_are_one_row_per_image(self, tmp_path: Path) -> None:
        model = self.source.load(self.make_spec(tmp_path))
        for count in (1, 3):
            scores = self._scores(model, self._images(model, count))
            assert scores.ndim == 2, f"scores must be [B, num_classes], not of shape {tuple(scores.shape)}"
            expected = (count, model.num_classes or scores.shape[1])
            assert tuple(scores.shape) == expected, f"scores have shape {tuple(scores.shape)}, expected {expected}"
            assert scores.shape[1] >= 2, "a classifier needs at least two classes"
            assert scores.is_floating_point(), f"scores must be floating point, not {scores.dtype}"
            assert bool(scores.isfinite().all()), "scores must be finite"

    def test_evaluation_mode_is_deterministic(self, tmp_path: Path) -> None:
        """Dropout and batch statistics are off: a score depends on the weights and on its image."""
        model = self.source.load(self.make_spec(tmp_path))
        images = self._images(model, 4)
        torch.manual_seed(1)
        first = self._scores(model, images)
        torch.manual_seed(2)
        assert torch.equal(self._scores(model, images), first), "the same images got two different scores"
        alone = torch.cat([self._scores(model, images[i : i + 1]) for i in range(len(images))])
        torch.testing.assert_close(alone, first, rtol=1e-3, atol=1e-3, msg="scores depend on the rest of the batch")

    def test_threads_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        """A smoothed classifier calls its network from several threads at once."""
        model = self.source.load(self.make_spec(tmp_path))
        batches = [self._images(model, 2, seed) for seed in range(6)]
        expected = [self._scores(model, images) for images in batches]
        with ThreadPoolExecutor(3) as pool:
            for one, other in zip(pool.map(lambda images: self._scores(model, images), batches), expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, msg="threads change each other's scores")

    def test_the_digest_is_stable(self, tmp_path: Path) -> None:
        """A run is resumed only with the network that it was started with, which the digest tells."""
        spec = self.make_spec(tmp_path)
        model = self.source.load(spec)
        digest = model.digest()
        assert self.source.load(spec).digest() == digest, "loading the model twice gives two digests"
        self._scores(model, self._images(model, 2))
        assert model.digest() == digest, "using the model changes its digest"

    def test_other_weights_have_another_digest(self, tmp_path: Path) -> None:
        model = self.source.load(self.make_spec(tmp_path))
        digest = model.digest()
        weights = [tensor for tensor in model.module.state_dict().values() if tensor.is_floating_point()]
        if weights:
            with torch.no_grad():
                weights[-1].view(-1)[0] += 1
            assert model.digest() != digest, "a changed weight does not change the digest"
        else:
            assert model.fingerprint, "a module without weights needs a fingerprint of its file"

    def test_missing_files_raise_pprs_error(self, tmp_path: Path) -> None:
        path = Path(self.make_spec(tmp_path))
        if path.exists():
            missing = str(path.parent / "missing" / path.name)
            if self.source.claims(missing):
                with pytest.raises(PprsError):
                    self.source.load(missing)

    @pytest.mark.parametrize("form", ["pickle", "torch.save"])
    def test_files_are_not_unpickled(self, tmp_path: Path, form: str) -> None:
        """A pickle runs code when it is read, so a file of somebody else's must never be read as one."""
        (tmp_path / "model").mkdir()
        path, sprung = Path(self.make_spec(tmp_path / "model")), tmp_path / "sprung"
        if not path.exists():
            return  # not a model in files
        payload = tmp_path / "payload"
        if form == "pickle":
            payload.write_bytes(pickle.dumps(Trap(sprung)))
        else:
            torch.save(Trap(sprung), payload)
        parts = [path] if path.is_file() else sorted(part for part in path.rglob("*") if part.is_file())
        for part in parts:
            original = part.read_bytes()
            shutil.copyfile(payload, part)
            with contextlib.suppress(PprsError):
                self.source.load(str(path))
                assert path.is_dir(), f"a file that holds a pickle was loaded from {part.name}"
            assert not sprung.exists(), f"loading {part.name} ran the code that was pickled in it"
            part.write_bytes(original)

    def _images(self, model: Model, count: int, seed: int = 0) -> torch.Tensor:
        shape = model.input_shape or self.input_shape
        return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))

    def _scores(self, model: Model, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            scores: torch.Tensor = model.module.eval()(images.clone())  # a network may overwrite its input
        return scores.clone()
