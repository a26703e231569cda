"""Read finished runs: rows, certified accuracy, and the difference between two methods.

    python read_runs.py [RUN ...]

A run is a folder, a url, or rows that were exported to tsv, csv, parquet or json. Without arguments it reads the two
runs of certify_dataset.py.
"""

import sys
from itertools import combinations
from pathlib import Path

import pprs

RADII = [0.0, 0.25, 0.5, 0.75]
DEFAULT = ["runs/none", "runs/slic"]


def main(paths: list[str]) -> None:
    if not paths and not all(Path(path).exists() for path in DEFAULT):
        script = Path(__file__).with_name("certify_dataset.py")
        sys.exit(f"There are no runs in {' and '.join(DEFAULT)}. Make them with: python {script}")
    try:
        runs = {path: pprs.open_run(path) for path in paths or DEFAULT}
    except pprs.PprsError as error:  # says what is wrong and how to fix it
        sys.exit(str(error))

    for path, run in runs.items():
        settings = run.settings
        print(f"{path}: {len(run)} images, {settings.noise}, partition {settings.partition or 'none'}")
        accuracy = pprs.metrics.certified_accuracy(run, RADII)
        print("  certified accuracy: " + ", ".join(f"{s:.2f} at {r}" for r, s in zip(RADII, accuracy, strict=True)))
        radius, error = pprs.metrics.average_certified_radius(run), pprs.metrics.average_certified_radius_error(run)
        print(f"  average certified radius: {radius:.3f} (95% interval +- {error:.3f})")

    # Images differ much more than methods do. Comparing image by image removes that variation, so it tells methods
    # apart whose own intervals overlap.
    for one, other in combinations(runs, 2):
        difference = pprs.metrics.radius_difference(runs[other], runs[one])
        print(f"{other} minus {one}: {difference.mean:+.3f} (95% interval +- {difference.error:.3f})")
        print(f"  over {difference.images} images, {other}: {difference.verdict}")

    # For everything else there are tables: one row per image.
    table = next(iter(runs.values())).to_pandas()
    print("\n" + table[["idx", "label", "predict", "radius"]].head().to_string(index=False))


if __name__ == "__main__":
    main(sys.argv[1:])
