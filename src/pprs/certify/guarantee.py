"""The guarantee of `pprs certify`: one label that no change of L2 norm up to a radius alters."""

from __future__ import annotations

from pprs.runs.guarantee import Guarantee
from pprs.runs.row import ROWS, Failure, Row
from pprs.runs.settings import RunSettings


class CertifyGuarantee(Guarantee[RunSettings, Row]):
    """One label, and a radius within which no change alters it."""

    name = "certify"
    noun = "a certification run"
    settings = RunSettings
    schema = ROWS

    def failed_row(self, failure: Failure) -> Row:
        return failure.row()


CERTIFY = CertifyGuarantee()
