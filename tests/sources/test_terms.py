"""Terms of use and citation are told once."""

from iobench.sources.opening import show_terms_once


class Notes(list):
    def note(self, text):
        self.append(text)


PROVENANCE = {"terms_of_use": "you agree to\n  the terms at example.org", "citation": "A et al."}


def test_they_are_shown_the_first_time_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    notes = Notes()
    for dataset, facts in (
        ("maelstrom-yr", PROVENANCE),
        ("maelstrom-yr", PROVENANCE),
        ("b", {"citation": "-", "terms_of_use": None}),
        ("b", {"citation": "B"}),
    ):
        show_terms_once(dataset, facts, notes)
    assert notes == [
        "maelstrom-yr: terms of use: you agree to the terms at example.org; cite: A et al. (shown "
        "once)",
        "b: cite: B (shown once)",
    ]


def test_where_nothing_can_be_remembered_they_are_shown_each_time(tmp_path, monkeypatch):
    (tmp_path / "iobench").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    notes = Notes()
    for _ in range(2):
        show_terms_once("a", PROVENANCE, notes)
    assert len(notes) == 2
