"""The folder of an audit: what is done, changed images and figures. Repeating the call continues it."""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from pprs._support.files import atomic_write
from pprs.audit.auditor import Auditor, Changed
from pprs.audit.levels import Ints
from pprs.audit.options import AuditOptions
from pprs.audit.result import Audit, AuditedImage
from pprs.errors import ConfigurationError, PprsError
from pprs.runs import Provenance

GALLERY_ROWS = 6
RESULT, CHARTS, GALLERY, FOUND = "audit.json", ("audit.png", "audit.svg"), "gallery.png", "found"


class AuditResults:
    """The images done so far, in memory and in a folder."""

    def __init__(
        self,
        folder: Path | None,
        settings: Provenance,
        auditor: Auditor,
        options: AuditOptions,
        attempts: Mapping[int, int],
    ) -> None:
        self.folder, self._auditor, self._attempts = folder, auditor, attempts
        self._names = settings.class_names
        self._settings = {
            "run": _digest_run(settings),
            "model": settings.model,
            "data": settings.data,
            **{key: getattr(settings, field) for key, field in settings.texts.items()},
            "class_names": None if self._names is None else list(self._names),
            "options": asdict(options),
            "seed": auditor.seed,
        }
        self.images: list[AuditedImage] = []
        self._changed: dict[str, Ints] = {}
        if folder is not None and (folder / RESULT).is_file():
            self._restore(folder)

    def _restore(self, folder: Path) -> None:
        """Continue the audit in the folder, if it has the same settings."""
        previous = Audit.read_json(folder / RESULT)
        differing = [key for key, value in self._settings.items() if previous.settings.get(key) != value]
        if differing:
            raise ConfigurationError(
                f"{folder} holds another audit: it differs in {', '.join(differing)}. Give another `out`.",
                parameter="out",
            )
        for image in previous.images:
            paths = {name: folder / FOUND / f"{name}.npy" for name in image.file_names}
            if not all(path.is_file() for path in paths.values()):
                continue  # a changed image is lost, so the image is attacked again
            self.images.append(image)
            self._changed |= {name: _read_levels(path) for name, path in paths.items()}

    def add(self, image: AuditedImage, changed: Changed) -> None:
        """Record the result of an image, its changed images first."""
        self.images = sorted([*self.images, image], key=lambda image: image.idx)
        self._changed |= changed
        if self.folder is None:
            return
        for name, levels in changed.items():
            self._write_changed(name, levels, self._auditor.level_image(image.idx).levels, self.folder / FOUND)
        self.audit().write_json(self.folder / RESULT)

    def _write_changed(self, name: str, changed: Ints, levels: int, folder: Path) -> None:
        from pprs.audit import figures  # matplotlib takes a second to import

        with atomic_write(folder / f"{name}.png") as part:
            part.write_bytes(figures.encode_levels(changed, levels))
        buffer = io.BytesIO()
        np.save(buffer, changed.astype(np.uint8 if levels == 255 else np.uint16 if changed.ndim == 3 else np.int64))
        with atomic_write(folder / f"{name}.npy") as part:
            part.write_bytes(buffer.getvalue())

    def audit(self, indices: Sequence[int] | None = None) -> Audit:
        """Return the result for these images, or for all that are done."""
        images = [image for image in self.images if indices is None or image.idx in set(indices)]
        attempted = max((self._attempts.get(image.idx, len(self._attempts)) for image in images), default=0)
        return Audit(tuple(images), self._auditor.alpha, self._settings, attempted)

    def draw(self) -> None:
        """Draw the plot and the gallery of what is done."""
        if self.folder is None or not self.images:
            return
        from pprs.audit import figures  # matplotlib takes a second to import

        audit = self.audit()
        plot = figures.plot_audit(audit)
        for name in CHARTS:
            with atomic_write(self.folder / name) as part:
                part.write_bytes(figures.to_bytes(plot, name.rpartition(".")[2]))
        images = sorted(audit.images, key=lambda image: not image.inside)
        rows = (row for image in images for row in self._auditor.make_gallery_rows(image, self._changed))
        shown = list(itertools.islice(rows, GALLERY_ROWS))
        if shown:
            gallery = figures.plot_gallery(shown, self._names)
            with atomic_write(self.folder / GALLERY) as part:
                part.write_bytes(figures.to_bytes(gallery, "png"))


def _digest_run(settings: Provenance) -> str:
    """Return a digest of all settings of a run."""
    return hashlib.sha256(repr(sorted(settings.to_dict().items())).encode()).hexdigest()[:16]


def _read_levels(path: Path) -> Ints:
    try:
        return np.asarray(np.load(path, allow_pickle=False), np.int64)
    except (OSError, ValueError) as error:
        raise PprsError(f"{path} cannot be read ({error}). Delete it, or give another `out`.") from error
