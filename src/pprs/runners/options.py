"""How a run is made, whatever it promises."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pprs.errors import ConfigurationError, check_integer, check_type
from pprs.noise import AnyNoise, Noise, as_noise
from pprs.partition import AUTO, AnyPartition, Auto, Partition, as_partition
from pprs.progress import Progress
from pprs.runners.base import Runner
from pprs.runners.budget import Budget, parse_budget
from pprs.runners.cost import RunLimits
from pprs.runners.local import Local
from pprs.runs import Guarantee, check_out
from pprs.runs.engine import EngineOptions
from pprs.smoothing.arithmetic import Arithmetic


@dataclass(frozen=True)
class RunOptions:
    """How a run is made, whatever it promises.

    Attributes:
        noise: The noise. None if inputs are changed otherwise.
        partition: The partition. None means none, and "auto" the recommended one.
        seed: The random seed.
        out: Folder or url of the run. None keeps the rows only as long as the returned run.
        runner: Where inputs are answered.
        engine: How the network is run.
        limits: When the run ends before its last input.
        progress: Whether to show progress, or an object that receives it.
        arithmetic: The arithmetic.
    """

    noise: Noise | None = None
    partition: Partition | Auto | None = None
    seed: int = 0
    out: str | Path | None = None
    runner: Runner = field(default_factory=Local)
    engine: EngineOptions = field(default_factory=EngineOptions)
    limits: RunLimits = field(default_factory=RunLimits)
    progress: bool | Progress = True
    arithmetic: str | Arithmetic = "auto"

    @classmethod
    def of(
        cls,
        *,
        noise: AnyNoise | None = None,
        partition: AnyPartition = AUTO,
        seed: int = 0,
        out: str | Path | None = None,
        runner: Runner | None = None,
        engine: str = "auto",
        device: str = "cpu",
        batch_size: int | None = None,
        threads: int | None = None,
        autocast: bool = False,
        channels_last: bool = False,
        budget: str | Budget | None = None,
        target_error: float | None = None,
        progress: bool | Progress = True,
        arithmetic: str | Arithmetic = "auto",
    ) -> RunOptions:
        """Return the options that the keywords of `certify_dataset` and the like mean."""
        return cls(
            None if noise is None else as_noise(noise), as_partition(partition, auto=True),
            seed, out, runner or Local(), EngineOptions(engine, device, batch_size, threads, autocast, channels_last),
            RunLimits(parse_budget(budget) if isinstance(budget, str) else budget, target_error), progress, arithmetic,
        )  # fmt: skip

    def check(self, guarantee: Guarantee[Any, Any]) -> None:
        """Reject invalid arguments before anything is loaded."""
        self._check_noise(guarantee)
        if self.partition != AUTO:
            check_type(self.partition, Partition | None, "partition", 'pprs.Slic() or "slic:n_segments=100"')
        check_type(self.runner, Runner, "runner", "pprs.Processes(8)")
        check_integer(self.seed, "seed")
        check_out(self.out)
        if self.engine.threads is not None and self.runner.parallel:
            raise ConfigurationError(
                "`threads` applies to this process only. Give the threads per worker to the `runner`.",
                parameter="threads",
            )
        self.runner.check_device(self.engine.device)
        if self.noise is not None:
            Arithmetic.of(self.arithmetic, self.noise)
        self._check_limits(guarantee)

    def _check_noise(self, guarantee: Guarantee[Any, Any]) -> None:
        if guarantee.is_sampled:
            check_type(self.noise, Noise, "noise", 'pprs.Gaussian(0.25) or "gaussian:sigma=0.25"')
            return
        arithmetic = None if self.arithmetic == "auto" else self.arithmetic
        partition = None if self.partition == AUTO else self.partition  # which is the default
        drawn: dict[str, object] = {"noise": self.noise, "partition": partition, "arithmetic": arithmetic}
        drawn["seed"] = self.seed or None
        for name, value in drawn.items():
            if value is not None:
                raise ConfigurationError(
                    f"`{name}` does not apply here: {guarantee.noun} draws no noise. Leave it out.", parameter=name
                )

    def _check_limits(self, guarantee: Guarantee[Any, Any]) -> None:
        if guarantee.can_budget:
            return
        for name, value in (("budget", self.limits.budget), ("target_error", self.limits.target_error)):
            if value is not None:
                raise ConfigurationError(
                    f"`{name}` does not apply here: every row of {guarantee.noun} takes passes whose number is not "
                    "chosen while it is made. Choose fewer images, or stop the run and resume it later.",
                    parameter=name,
                )
