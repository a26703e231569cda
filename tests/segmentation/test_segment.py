"""Runs of certified segmentation: data with masks, model sources, resumption, reports and the command."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Record, pprs
from networks import save_unet
from PIL import Image

from pprs import Gaussian, Model, PprsError, adapt, load_model
from pprs.adaptation.criterion import FIRST_INDEX, judge
from pprs.adaptation.distillation import distil
from pprs.adaptation.problem import SmoothingProblem
from pprs.errors import ConfigurationError
from pprs.model.changes import Changes
from pprs.progress import Silent
from pprs.runs import FILE, Run, open_run
from pprs.runs.columns import MAP
from pprs.segmentation import SegmentationSampling
from pprs.segmentation.data import MaskedArrays, MaskedFolder, as_masked_set, open_masked
from pprs.segmentation.metrics import Confusion
from pprs.segmentation.run import segment_dataset
from pprs.segmentation.scenes import CLASS_NAMES, Scenes, _digits
from pprs.segmentation.summary import add_up
from pprs.segmentation.train import train_segmenter
from pprs.training.trainer import Recipe

NOISE, SAMPLING = Gaussian(0.25), SegmentationSampling(n0=5, n=60)
IMAGES = (np.arange(5)[:, None, None, None] * 20 + np.where(np.arange(16) < 8, 0, 170)).astype(np.uint8)
IMAGES = np.broadcast_to(IMAGES, (5, 1, 16, 16)).copy()
MASKS = np.broadcast_to(np.where(np.arange(16) < 8, 0, 1), (5, 16, 16)).astype(np.uint8).copy()


class Halves(torch.nn.Module):
    """Class 1 where the mean around a pixel is above a half, class 0 elsewhere, and never class 2."""

    num_classes, input_shape = 3, (1, 16, 16)

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = torch.nn.functional.avg_pool2d(x, 5, 1, 2, count_include_pad=False) * self.weight - 0.5
        return torch.cat([-mean, mean, -5 + 0 * mean], dim=1)


def segment(data: Any = (IMAGES, MASKS), model: Any = None, **options: Any) -> Run:
    settings = {"noise": NOISE, "partition": None, "sampling": SAMPLING, "progress": False, **options}
    return segment_dataset(model or Halves(), data, **settings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, arrays in (("images", IMAGES[:, 0]), ("masks", MASKS)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i, array in enumerate(arrays):
            Image.fromarray(array).save(tmp_path / "data" / name / f"{i}.png")
    return tmp_path / "data"


# ---- data


def test_scenes_are_fixed_and_splits_share_no_digit() -> None:
    train, test = Scenes("train"), Scenes("test")
    assert len(CLASS_NAMES) == 11
    example, again = test.masked(3), Scenes("test").masked(3)
    assert example.mask is not None
    assert torch.equal(example.image, again.image)
    assert example.image.shape == (1, 64, 64)
    assert set(example.mask.unique().tolist()) <= set(range(11))
    assert len(example.mask.unique()) >= 3
    assert bool((example.image[0][example.mask > 0] >= 64 / 255).all())
    assert not torch.equal(train.masked(3).image, example.image)
    own, other = (({row.tobytes() for row in _digits(split)[0]}) for split in ("train", "test"))
    assert not own & other
    with pytest.raises(ConfigurationError, match='no split "val"'):
        Scenes("val")


def test_folders_npz_and_hugging_face(folder: Path, tmp_path: Path) -> None:
    data = open_masked(str(folder))
    assert isinstance(data, MaskedFolder)
    np.savez(tmp_path / "data.npz", x=IMAGES, masks=MASKS, class_names=np.array(["left", "right"]))
    arrays = open_masked(str(tmp_path / "data.npz"))
    assert arrays.class_names == ("left", "right")
    for index in range(5):
        ours, theirs = data.masked(index), arrays.masked(index)
        assert ours.mask is not None
        assert theirs.mask is not None
        assert torch.equal(ours.image, theirs.image)
        assert torch.equal(ours.mask, theirs.mask)
    import datasets

    files = {name: [str(folder / name / f"{i}.png") for i in range(5)] for name in ("images", "masks")}
    features = datasets.Features({"image": datasets.Image(), "annotation": datasets.Image()})
    table = datasets.Dataset.from_dict({"image": files["images"], "annotation": files["masks"]}, features)
    (tmp_path / "hub").mkdir()
    table.to_parquet(tmp_path / "hub" / "test.parquet")
    hub = open_masked(str(tmp_path / "hub")).masked(4)
    assert hub.mask is not None
    assert torch.equal(hub.mask, torch.from_numpy(MASKS[4].astype(np.int64)))
    plain = open_masked(str(folder / "images"))
    assert plain.masked(0).mask is None


def test_pixels_that_do_not_count(folder: Path) -> None:
    mask = MASKS[0].copy()
    mask[0] = 255
    Image.fromarray(mask).save(folder / "masks" / "0.png")
    found = open_masked(str(folder)).masked(0).mask
    assert found is not None
    assert (found[0] == -1).all()
    assert Confusion.of(np.zeros((16, 16), int), found.numpy(), 3).pixels == 15 * 16


@pytest.mark.parametrize("split", ["train", "test"])
def test_folders_with_splits(folder: Path, split: str) -> None:
    (folder / split).mkdir()
    for name in ("images", "masks"):
        (folder / name).rename(folder / split / name)
    assert len(open_masked(str(folder), split=split)) == 5
    with pytest.raises(ConfigurationError, match='no split "other"'):
        open_masked(str(folder), split="other")


def test_masks_follow_the_preparation_of_images() -> None:
    """Where an image and a mask are the same picture, they still are after both were prepared."""
    model = load_small(32, 24)
    picture = torch.zeros(80, 50)
    picture[20:60, 10:30] = 1
    image, mask = model.prepare(picture[None].expand(1, -1, -1).clone()), model.prepare_mask(picture.long())
    assert mask.shape == image.shape[1:] == (32, 24)
    assert float(((image[0] > 0.5) != (mask == 1)).float().mean()) < 0.05
    same = load_small(16, 16).prepare_mask(torch.from_numpy(MASKS[0]).long())
    np.testing.assert_array_equal(same.numpy(), MASKS[0])


def load_small(height: int, width: int) -> Any:
    return Model(Halves(), "small", 3, None, (1, height, width))


# ---- runs


def test_a_run_scores_and_resumes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        segment(out=tmp_path / "run", progress=Record(interrupt_after=5 + 3 * 65))
    done = len(open_run(tmp_path / "run"))
    assert 0 < done < 5
    record = Record()
    run = segment(out=tmp_path / "run", progress=record)
    assert any(f"resuming: {done} of 5" in message for message in record.messages)
    fresh = segment()
    assert [row.certificate for row in run.iter_rows()] == [row.certificate for row in fresh.iter_rows()]
    summary = add_up(run)
    assert summary.certified is not None
    assert summary.selected is not None
    assert (summary.images, summary.failed, summary.pixels) == (5, 0, 5 * 256)
    assert 0.3 < summary.certified.accuracy <= 1 - summary.certified.abstained_share
    assert summary.radius == pytest.approx(0.16862, abs=1e-5)
    with pytest.raises(ConfigurationError, match="other settings:\n  tau: the run has 0.75, you asked for 0.8"):
        segment(out=tmp_path / "run", sampling=SegmentationSampling(0.8, 5, 60))
    changed = IMAGES.copy()
    changed[1, 0, 5, 5] += 1
    with pytest.raises(ConfigurationError, match="image 1 is not the one that was certified"):
        segment((changed, MASKS), out=tmp_path / "run")
    assert len(run) == 5


def test_claims_are_derived_from_the_counts_of_a_run(tmp_path: Path) -> None:
    """A run holds counts and no claims, so a changed count changes the claim, and an impossible one is refused."""
    run = segment(out=tmp_path / "run", sampling=SegmentationSampling(n0=5, n=60, groups=None))
    before = next(run.iter_rows()).certificate
    assert before.certified.any()

    def overwrite(counts: np.ndarray) -> None:
        with sqlite3.connect(tmp_path / "run" / FILE) as db:
            db.execute("UPDATE rows SET counts = ? WHERE idx = 0", (MAP.store(counts),))

    lower = before.counts.copy()
    lower[before.certified] = before.least_count - 1
    overwrite(lower)
    assert not next(open_run(tmp_path / "run").iter_rows()).certificate.certified.any()
    overwrite(np.full((16, 16), 61))
    with pytest.raises(PprsError, match='row of image 0 is damaged: "counts" must lie between 0 and 60'):
        next(open_run(tmp_path / "run").iter_rows())
    overwrite(np.zeros((64, 64)))
    with pytest.raises(PprsError, match='"counts" has .64, 64. pixels, and "shape" is .1, 16, 16.'):
        next(open_run(tmp_path / "run").iter_rows())


def test_groups_are_stored_with_a_run(tmp_path: Path) -> None:
    from pprs import Grid, Slic

    for groups in (Grid(4), Slic(n_segments=9, blur=1)):
        run = segment(sampling=SegmentationSampling(n0=5, n=60, groups=groups), images=[0, 3])
        for row in run.iter_rows():
            assert row.certificate.cells is not None
            assert row.certificate.hypotheses == row.certificate.cells.max() + 1 < 64
            assert row.certificate.certified.any()


def test_images_that_fail_are_recorded(folder: Path, tmp_path: Path) -> None:
    (folder / "images" / "1.png").write_bytes(b"no image")
    run = segment(str(folder), out=tmp_path / "run")
    assert [failure.idx for failure in run.failures()] == [1]
    summary = add_up(run)
    assert (summary.failed, summary.pixels) == (1, 5 * 256)
    assert summary.certified is not None
    assert summary.certified.abstained_share >= 0.2  # the image that failed counts as abstained
    Image.fromarray(IMAGES[1, 0]).save(folder / "images" / "1.png")
    again = segment(str(folder), out=tmp_path / "run")
    assert not again.failures()
    assert len(again) == 5


# ---- model sources


def test_networks_in_files(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    net = torch.nn.Conv2d(1, 3, 3, padding=1).eval()
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(net, (torch.rand(2, 1, 16, 16),), dynamic_shapes=(batch,))
    torch.export.save(program, tmp_path / "net.pt2")
    stored = [numpy_helper.from_array(value.detach().numpy(), name) for name, value in net.named_parameters()]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", c, 16, 16]) for n, c in (("x", 1), ("y", 3))]
    node = helper.make_node("Conv", ["x", "weight", "bias"], ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph([node], "net", ends[:1], ends[1:], stored)
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(tmp_path / "net.onnx")
    )
    expected = next(segment(model=net, images=[0]).iter_rows()).certificate
    for kind in ("pt2", "onnx"):
        model = load_model(str(tmp_path / f"net.{kind}"))
        assert (model.task, model.num_classes, model.input_shape) == ("segment", 3, (1, 16, 16))
        run = segment(model=str(tmp_path / f"net.{kind}"), images=[0])
        assert run.settings.engine == ("onnxruntime" if kind == "onnx" else "torch")
        found = next(run.iter_rows()).certificate
        np.testing.assert_array_equal(found.selected, expected.selected)
        assert np.abs(found.counts - expected.counts).max() <= 1
    saved = load_model(str(save_unet(tmp_path / "u.safetensors")))
    assert (saved.task, saved.num_classes, saved.input_shape) == ("segment", 3, (1, 16, 16))


def test_transformers_with_coarse_scores(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[1, 1], hidden_sizes=[4, 8], patch_sizes=[3, 3], strides=[2, 2],
        num_attention_heads=[1, 1], mlp_ratios=[1, 1], decoder_hidden_size=4, num_labels=4,
    )  # fmt: skip
    transformers.SegformerForSemanticSegmentation(config).save_pretrained(tmp_path / "net")
    (tmp_path / "net" / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_processor_type": "SegformerImageProcessor",
                "size": {"height": 32, "width": 32},
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
                "do_resize": True,
                "do_normalize": True,
            }
        )
    )
    model = load_model(str(tmp_path / "net"))
    assert (model.task, model.num_classes) == ("segment", 4)
    assert model.module(torch.rand(1, 3, 32, 32)).shape[2] < 32
    row = next(segment((IMAGES, MASKS), model=str(tmp_path / "net"), images=[1]).iter_rows())
    assert row.certificate.labels.shape == (32, 32)
    assert row.mask is not None
    assert row.mask.shape == (32, 32)


def test_training(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    recipe = Recipe(epochs=12, batch_size=5, width=2, flip=True, shift=2)
    data = as_masked_set((IMAGES, MASKS))
    train_segmenter(data, recipe, noise=NOISE, out=path, data_name="halves", partition=None)
    model = load_model(str(path))
    labels = model.module(data.masked(3).image[None])[0].argmax(0)
    assert float((labels == data.mask_of(3)).float().mean()) > 0.8
    with pytest.raises(ConfigurationError, match="training needs masks"):
        train_segmenter(as_masked_set((IMAGES, None)), recipe, out=path, data_name="none")


class Pixels(torch.nn.Module):
    """Class 1 where a pixel is bright and class 0 elsewhere, whatever its neighbours, behind batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = torch.nn.BatchNorm2d(1), torch.nn.Conv2d(1, 2, 5, padding=2)
        with torch.no_grad():
            self.norm.running_mean.fill_(0.5), self.norm.running_var.fill_(0.25)
            self.last.weight.zero_(), self.last.bias.zero_()
            self.last.weight[:, 0, 2, 2] = torch.tensor([-3.0, 3.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.norm(x))
        return scores


def draw_blocks(count: int) -> torch.Tensor:
    """Return black and white images of blocks of 4x4 pixels."""
    blocks = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(0)).round()
    return torch.nn.functional.interpolate(blocks, scale_factor=4)


def test_adaptation_without_masks(tmp_path: Path) -> None:
    """Statistics are those of noisy images, and distillation teaches a network to look at the neighbours."""
    net, images, noise = Pixels().eval(), draw_blocks(80), Gaussian(0.5)
    overlay = adapt(
        net, images, noise=noise, method="statistics", out=tmp_path / "s.safetensors", progress=False, partition=None
    )
    weight = 60 / (60 + 16)  # of 60 images, against the statistics before
    found = float(overlay.changes.weights["norm.running_var"])
    assert found == pytest.approx(0.25 + weight * noise.sigma**2, rel=0.02)
    problem = SmoothingProblem(Model(net, "pixels", 2, task="segment"), images[20:], noise, None)
    before = judge(problem, Changes(), images[:10], 16)
    after = judge(problem, distil(problem, Changes(), progress=Silent(), steps=25), images[:10], 16)
    assert after.improves_on(before)
    assert after.radius > 1.2 * before.radius
    with pytest.raises(ConfigurationError, match="labels every pixel, which bias does not suit.*statistics or distill"):
        adapt(net, images, noise=noise, method="bias", out=tmp_path / "b.safetensors", progress=False, partition=None)


def test_a_judgement_of_maps_by_brute_force() -> None:
    model, images = Model(Halves(), "halves", 3, task="segment"), torch.from_numpy(IMAGES[1:4]).float() / 255
    problem = SmoothingProblem(model, images, NOISE, None)
    found = judge(problem, Changes(), images, 16)
    for i, image in enumerate(images):
        clean = model.module(image[None]).argmax(1)[0]
        votes = model.module(problem.perturb(image.expand(16, -1, -1, -1), FIRST_INDEX + i)).argmax(1)
        winner = torch.stack([(votes == label).sum(0) for label in range(3)]).argmax(0)
        assert found.agrees[i] == pytest.approx(float((winner == clean).float().mean()))
        own = ((votes == clean).sum(0) + 0.5) / 17
        radii = [NOISE.radius(min(float(share), 0.9931), 256) for share in own.flatten()]
        assert found.radii[i] == pytest.approx(np.mean(radii), rel=0.01)
    assert 0.5 < found.agreement < 1


def test_an_adapted_network_is_certified_and_verified(
    unet: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.repeat(IMAGES, 12, 0) + np.arange(60, dtype=np.uint8)[:, None, None, None]
    np.savez(tmp_path / "more.npz", x=images, masks=np.repeat(MASKS, 12, 0))
    adapted = tmp_path / "a.safetensors"
    common, plain = ("--model", unet, "--sigma", 0.25), ("--partition", "none")
    with monkeypatch.context() as patch:
        patch.setattr(MaskedArrays, "mask_of", lambda *_: pytest.fail("a mask was read"))
        out = pprs(
            "adapt", *common, "--data", tmp_path / "more.npz", "--method", "statistics", *plain, "--out", adapted
        ).stdout
    assert "if it labels every pixel, with pprs segment" in out
    run = ("segment", *common, "--data", folder, "--n", 55, "--limit", 1, "--adapted", adapted, "--engine", "torch")
    pprs(*run, "--out", tmp_path / "run")
    assert open_run(tmp_path / "run").settings.model == f"{unet}+adapted:{adapted}"
    assert "whole certificates compared (1 row)" in pprs("verify", tmp_path / "run", "--replay", 1).stdout
    progress = Record()
    segment(str(folder), str(unet), adapted=adapted, partition="blur:size=3", images=[0], progress=progress)
    assert "adapted to the partition none, and is used with blur:size=3" in " ".join(progress.messages)


# ---- the command


@pytest.fixture
def unet(tmp_path: Path) -> Path:
    return save_unet(tmp_path / "u.safetensors")


def test_the_command_and_its_report(folder: Path, unet: Path, tmp_path: Path) -> None:
    common = ("segment", "--model", unet, "--data", folder, "--sigma", 0.25, "--n0", 3, "--n", 55, "--limit", 2)
    plain = ("--partition", "none", "--out", tmp_path / "rs")
    out = pprs(*common, *plain, "--show", tmp_path / "maps.png", "--threads", 1)
    assert "of the pixels of 2 images certified" in out.stdout
    assert "holds for all its pixels at once, with 99.9% confidence, among 8-bit images" in out.stdout
    assert "certified mean IoU" in out.stdout
    assert (tmp_path / "maps.png").stat().st_size > 1000
    pprs(*common, "--out", tmp_path / "blur", "--partition", "blur:size=3", "--groups", "grid:size=4")
    out = pprs("report", tmp_path / "rs", tmp_path / "blur", "--out", tmp_path / "report.html")
    assert "plain" in out.stdout
    page = (tmp_path / "report.html").read_text()
    assert page.count("<img") == 2 * (5 + 3)
    assert re.search("blur[^<]*, groups grid", page)
    pprs("report", tmp_path / "rs", "--out", tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())[0]["settings"]["n"] == 55
    out = pprs(*common[:-1], 1, "--groups", "grid:size=4")
    assert "in 16 groups of pixels" in out.stdout or "abstained at all" in out.stdout


def test_verification(folder: Path, unet: Path, tmp_path: Path) -> None:
    common = ("segment", "--model", unet, "--data", folder, "--sigma", 0.25, "--n0", 3, "--n", 55, "--limit", 2)
    pprs(*common, "--out", tmp_path / "run")
    out = pprs("verify", tmp_path / "run", "--replay", 1).stdout
    assert "claims: derived from the counts (2 rows)" in out
    assert "images: their digests (2 rows)\nchecked: true masks (2 rows)\nchecked: pictures for reports (2 rows)" in out
    assert "votes: drawn again, and whole certificates compared (1 row)" in out
    seed = re.search("which rows: 1 of 2 rows, 1 of them chosen at random with --seed ([0-9]+)", out)
    assert seed is not None
    assert pprs("verify", tmp_path / "run", "--replay", 1, "--seed", seed[1]).stdout == out
    with sqlite3.connect(tmp_path / "run" / FILE) as db:
        db.execute("UPDATE rows SET counts = ? WHERE idx = 1", (MAP.store(np.full((16, 16), 9)),))
    out = pprs("verify", tmp_path / "run", "--rows", "0,1", code=1).stdout
    assert re.search("mismatch: row 1: counts differ at [0-9]+ of 256 pixels", out)
    assert "no row of image 4" in pprs("verify", tmp_path / "run", "--rows", "4", code=2).stderr


def test_bad_input(folder: Path, unet: Path, tmp_path: Path) -> None:
    common = ("segment", "--model", unet, "--sigma", 0.25, "--n", 60, "--data")
    mask = Image.open(folder / "masks" / "3.png")
    mask.resize((8, 8)).save(folder / "masks" / "3.png")
    error = pprs(*common, folder, "--out", tmp_path / "run", code=2).stderr
    assert "image 3 has 16x16 pixels, but its mask has 8x8" in error
    assert "resize it to the image without interpolation" in error
    assert not (tmp_path / "run" / FILE).exists()
    beyond = MASKS[3].copy()
    beyond[2, 2] = 12
    Image.fromarray(beyond).save(folder / "masks" / "3.png")
    error = pprs(*common, folder, code=2).stderr
    assert "the mask of image 3 has the label 12, but the network has the classes 0 to 2" in error
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(folder / "masks" / "3.png")
    assert "has 3 channels, but a mask has one" in pprs(*common, folder, code=2).stderr
    (folder / "masks" / "3.png").unlink()
    assert "the image 3.png has no mask" in pprs(*common, folder, code=2).stderr
    assert "--n" in pprs(*common[:-2], 5, "--data", "builtin:scenes", code=2).stderr
    np.savez(tmp_path / "bad.npz", x=IMAGES, masks=MASKS[:3])
    assert "masks must be integers [N, H, W] for the 5 images" in pprs(*common, tmp_path / "bad.npz", code=2).stderr


def test_networks_of_the_other_kind(unet: Path, tmp_path: Path) -> None:
    from networks import save_network

    classifier = save_network(tmp_path / "c.safetensors")
    np.savez(tmp_path / "x.npz", x=IMAGES)
    error = pprs("segment", "--model", classifier, "--data", tmp_path / "x.npz", "--sigma", 0.25, code=2).stderr
    assert "labels the whole image" in error
    assert "Use `pprs certify`" in error
    error = pprs("certify", "--model", unet, "--data", tmp_path / "x.npz", "--sigma", 0.25, "--limit", 1, code=2).stderr
    assert "labels every pixel" in error
    assert "Use `pprs segment`" in error
