"""Contract tests for your own guarantee, partition, noise, model source or runner.

Subclass a contract in a test file, override its hook, and run pytest:

    from pprs.testing import PartitionContract

    class TestMyPartition(PartitionContract):
        def make_partition(self):
            return MyPartition()

The contracts check what certificates rely on, so a class that fails one of them should not be used to certify. Passing
is evidence and not a proof: a contract tries a few images and a finite number of samples. The built-in classes are run
through the same contracts. This module needs pytest, and nothing else in the package imports it.
"""

from __future__ import annotations

try:
    import pytest as pytest
except ImportError as error:
    raise ImportError("pprs.testing needs pytest. Install it with: pip install pytest") from error

from pprs.testing.guarantee import GuaranteeContract
from pprs.testing.model_source import ModelSourceContract
from pprs.testing.noise import NoiseContract
from pprs.testing.partition import PartitionContract
from pprs.testing.runner import ChangingNetwork, ContractNetwork, RunnerContract
from pprs.testing.store import StoreContract

__all__ = [
    "ChangingNetwork", "ContractNetwork", "GuaranteeContract", "ModelSourceContract", "NoiseContract",
    "PartitionContract", "RunnerContract", "StoreContract",
]  # fmt: skip
