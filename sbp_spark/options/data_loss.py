"""What is done when records that were to be read are gone."""

from __future__ import annotations

from enum import Enum

from sbp_spark.options.reading import OptionReader


class OnDataLoss(Enum):
    """Values of failOnDataLoss."""

    FAIL = "true"
    SKIP = "false"
    REPORT = "report"


def read_on_data_loss(reader: OptionReader) -> OnDataLoss:
    """Return what is done about lost records."""
    words = [each.value for each in OnDataLoss]
    return OnDataLoss(reader.choice("failOnDataLoss", words, OnDataLoss.FAIL.value))
