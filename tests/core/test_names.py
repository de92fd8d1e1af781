"""Names of jobs, and the known word that was meant."""

from __future__ import annotations

import pytest

from lightning_core.core.names import check_name, closest, is_name


@pytest.mark.parametrize("name", [None, 3, "", "a.", "con", "nul.txt", "-a", "a b"])
def test_what_is_no_name_is_refused_as_it_is(name: object) -> None:
    assert not is_name(name)
    with pytest.raises(ValueError, match="invalid job name "):
        check_name(name)


def test_a_long_name_is_shown_by_its_beginning() -> None:
    with pytest.raises(ValueError, match=f"invalid job name '{'-' * 77}[.]{{3}}': "):
        check_name("-" * 81)
    with pytest.raises(ValueError, match=f"invalid job name '{'-' * 80}': "):
        check_name("-" * 80)


def test_the_word_that_was_meant_keeps_its_own_case() -> None:
    assert closest("DeadLine", ["deadlines", "Deadline", "headline"]) == "Deadline"
