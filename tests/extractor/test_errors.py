import pytest

from godwit.extractor import errors
from godwit.extractor.errors import GodwitError

ALL = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, GodwitError)]
KINDS = [each for each in ALL if each is not GodwitError]


@pytest.mark.parametrize("error", KINDS)
def test_every_error_has_an_exit_code_of_its_kind_and_a_next_step(error: type[GodwitError]) -> None:
    assert 64 <= error.exit_code <= 73
    assert error("text").next_step


def test_exit_codes_are_distinct_but_for_an_error_and_its_special_cases() -> None:
    families = [each for each in KINDS if each.__base__ is GodwitError]
    assert len({each.exit_code for each in families}) == len(families) == 10


def test_a_next_step_can_be_given_where_a_better_one_is_known() -> None:
    assert errors.UsageError("text", next_step="do this").next_step == "do this"
    assert errors.UsageError("text").next_step != "do this"


@pytest.mark.parametrize("error", KINDS)
def test_the_tree_at_the_top_of_the_module_is_true(error: type[GodwitError]) -> None:
    (line,) = [line for line in (errors.__doc__ or "").splitlines() if f" {error.__name__} " in line]
    assert f" {error.exit_code} " in line
    assert line.startswith("    │   ") == (error.__base__ is not GodwitError)
