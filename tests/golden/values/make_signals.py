"""Write changepoints.json and wavelets.json: `python make_signals.py`, with ruptures and PyWavelets installed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def make_signal(seed: int, channels: int, length: int) -> np.ndarray:
    """Return integers [C, T]: steps at random times, and noise with a standard deviation of 10."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, length, length // 15))
    steps = rng.integers(-40, 41, (channels, len(times) + 1))
    clean = steps[:, np.searchsorted(times, np.arange(length), "right")]
    return np.rint(clean + 10 * rng.standard_normal((channels, length))).astype(int)


def write_changepoints() -> None:
    import ruptures

    cases = []
    for seed, channels, length, penalty, min_size in [
        (0, 1, 60, 400, 1), (1, 1, 150, 1500, 1), (2, 1, 150, 100, 1), (3, 3, 100, 1500, 1), (4, 1, 90, 300, 5),
        (5, 2, 90, 900, 4), (6, 1, 80, 20, 8),
    ]:  # fmt: skip
        signal = make_signal(seed, channels, length)
        values = signal.T.astype(float)
        if min_size == 1:
            ends = ruptures.Pelt(model="l2", min_size=1, jump=1).fit(values).predict(pen=penalty)
        else:  # Pelt may prune too much here, so the best number of changes is found with the exact Dynp
            search = ruptures.Dynp(model="l2", min_size=min_size, jump=1).fit(values)
            found = [search.predict(n_bkps=k) for k in range(1, length // min_size)]
            ends = min(found, key=lambda ends: search.cost.sum_of_costs(ends) + penalty * len(ends))
        cases.append(
            {"signal": signal.tolist(), "penalty": penalty, "min_size": min_size, "ends": [int(e) for e in ends]}
        )
    write("changepoints.json", {"ruptures": ruptures.__version__, "cases": cases})


def write_wavelets() -> None:
    import pywt

    cases = []
    for seed, (name, length, levels) in enumerate(
        [("haar", 32, 5), ("haar", 29, 3), ("db2", 45, 3), ("db4", 64, 3), ("sym4", 100, 3), ("sym4", 29, 2)]
    ):
        signal = make_signal(seed, 1, length)[0]
        rough, *details = pywt.wavedec(signal.astype(float), name, mode="symmetric", level=levels)
        shrunk = [pywt.threshold(detail, 15.0, "soft") for detail in details]
        denoised = pywt.waverec([rough, *shrunk], name, mode="symmetric")[:length]
        case = {"wavelet": name, "levels": levels, "threshold": 15.0, "signal": signal.tolist()}
        cases.append(case | {"denoised": [round(float(value), 7) for value in denoised]})
    write("wavelets.json", {"PyWavelets": pywt.__version__, "cases": cases})


def write(name: str, values: object) -> None:
    (HERE / name).write_text(json.dumps(values, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write_changepoints()
    write_wavelets()
