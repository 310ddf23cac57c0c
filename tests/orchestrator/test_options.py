"""Durations are read as people write them."""

import click
import pytest

from godwit.orchestrator.options import duration

CONTEXT, PARAM = click.Context(click.Command("x")), click.Option(["--deadline"])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("1.5m", 90), ("10", 10), ("0", 0), ("-5s", -5)],
)
def test_a_duration_is_read_as_seconds(text: str, seconds: float) -> None:
    assert duration(CONTEXT, PARAM, text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "s", "1e3s", "nan", "inf", "--1s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a duration"):
        duration(CONTEXT, PARAM, text)
