"""Commands are kept with the names of their options and without the values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.command_words import drop_values
from iobench.masking import mask_text, mask_words

WORDS = st.lists(st.text(alphabet="ab\"'\\ =-:,{}$c", max_size=12), max_size=3)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("python train.py --lr 0.1 --workers=4", "python train.py --lr *** --workers=***"),
        ("python train.py -p X --passwd:X", "python train.py -p *** --passwd:***"),
        ("mysql -pQ4rty", "mysql -p***"),
        ("python -u -X dev -m pkg.train --a b", "python -u -X *** -m pkg.train --a ***"),
        ("python3.11 -c code 1", "python3.11 -c *** 1"),
        ("python -c code -p X -W X -x", "python -c *** -p *** -W *** -x"),
        ("torchrun --nproc 4 train.py --x", "torchrun --nproc *** train.py --x"),
        ("torchrun --standalone -m pkg.train", "torchrun --standalone -m pkg.train"),
        ("srun --exclusive python train.py", "srun --exclusive python train.py"),
        ("train.sh model.lr=1 /data/year=2020", "train.sh model.lr=*** /data/year=2020"),
        ("x --shift -5 --word -- -q", "x --shift *** --word -- -q"),
        ("x wJalrXUtnFEMIK7MDENGbPxRfiCYKEY", "x ***"),
        ("x 0123456789abcdef0123456789abcdef", "x ***"),
    ],
)
def test_options_keep_their_names_and_lose_their_values(words, kept):
    assert drop_values(words.split()) == kept.split()
    assert drop_values(kept.split()) == kept.split()


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["K=a run --pass 'c d' -v"], ["K=*** run --pass *** -v"]),
        (["bash", "-lc", "K='a b' train.py --y z"], ["bash", "-lc", "K=*** train.py --y ***"]),
        (["env", "K=a b c", "run"], ["env", "K=***", "run"]),
        (["run  K='a b run"], ["run ***"]),
        (["srun", "sh", "-c", "python -c 'a b'"], ["srun", "sh", "-c", "python -c ***"]),
    ],
)
def test_texts_of_shells_lose_values_too(words, kept):
    assert drop_values(words) == kept


@given(
    WORDS,
    st.sampled_from(["--lr", "--x_y", "-p", "-c"]),
    st.sampled_from(["sh -c {}", "sh -c '{}", "{}"]),
)
def test_whatever_stands_around_an_option_its_value_goes(words, option, shell):
    assert "QQ" not in str(drop_values([*words, "x", option, "QQ"]))
    assert "QQ" not in str(drop_values([*words, "x", f"--lr=QQ {words}"]))
    assert "QQ" not in str(drop_values(["sh", "-c", shell.format(f"x {option} QQ y")]))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("got hf_abcDEFghi012345678 from", "got *** from"),
        ("ghp_0123456789abcdefABCD", "***"),
        ("github_pat_11ABCDEFG0123456789_abc", "***"),
        ("(AKIAIOSFODNN7EXAMPLE)", "(***)"),
        ("sk-proj-abcdEFGH12345678", "***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF", "***"),
        (
            "AccountName=a;AccountKey=s3cret==;EndpointSuffix=x",
            "AccountName=a;AccountKey=***;EndpointSuffix=x",
        ),
        ("sv=2022&sig=abc%2Fdef%3D", "sv=2022&sig=***"),
        ("sig=abcdef%3D", "sig=***"),
        ("hf_transfer and task-0123456789ABCDEFGH", "hf_transfer and task-0123456789ABCDEFGH"),
        ("disk-0123456789ABCDEFGH, sk-learn-extension-name", None),
        ("sigma=1, AKIAN, eyJ.x", None),
    ],
)
def test_tokens_are_known_by_their_shape_in_any_text(text, masked):
    expected = text if masked is None else masked
    assert mask_text(text) == expected
    assert mask_words([text]) == [expected]
