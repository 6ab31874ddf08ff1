"""Terms of use and citation are told once."""

import pytest

from iobench.sources.opening import show_terms_once


class Notes(list):
    def note(self, text):
        self.append(text)


PROVENANCE = {"terms_of_use": "you agree to\n  the terms at example.org", "citation": "A et al."}


@pytest.fixture
def remember(tmp_path):
    return tmp_path / "state" / "terms-shown"


def test_they_are_shown_the_first_time_in_one_line(remember):
    notes = Notes()
    assert show_terms_once("maelstrom-yr", PROVENANCE, notes, remember)
    assert not show_terms_once("maelstrom-yr", PROVENANCE, notes, remember)
    assert show_terms_once("b", PROVENANCE, Notes(), remember)
    assert show_terms_once("b", PROVENANCE | {"terms_of_use": "other ones"}, Notes(), remember)
    assert notes == [
        "maelstrom-yr: terms of use: you agree to the terms at example.org; cite: A et al. (shown "
        "once)"
    ]


@pytest.mark.parametrize("provenance", [{}, {"citation": "-"}, {"terms_of_use": None}])
def test_without_any_nothing_is_said_and_nothing_written(provenance, remember):
    notes = Notes()
    assert not show_terms_once("a", provenance, notes, remember)
    assert notes == []
    assert not remember.exists()


def test_where_nothing_can_be_remembered_they_are_shown_each_time(tmp_path):
    (tmp_path / "state").write_text("a file where the folder should be")
    notes = Notes()
    for _ in range(2):
        assert show_terms_once("a", PROVENANCE, notes, tmp_path / "state" / "terms-shown")
    assert len(notes) == 2
