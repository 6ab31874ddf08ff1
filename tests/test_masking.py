"""Credentials in URLs and command lines are not written down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench import masking
from iobench.masking import (
    MASK,
    mask_text,
    mask_urls,
    mask_values,
    mask_words,
    note_secrets,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("https://me:pw@host:5000/path", "https://***@host:5000/path"),
        ("--mlflow=https://me:p@w@host/x?a=1", "--mlflow=https://***@host/x?a=1"),
        ("see http://token@host, and http://host/a@b", "see http://***@host, and http://host/a@b"),
        ("postgresql+psycopg2://u:pw@db/mlflow", "postgresql+psycopg2://***@db/mlflow"),
        ("https://host/f?X-Amz-Signature=abc&n=1", "https://host/f?X-Amz-Signature=***&n=1"),
        ("https://host/f?access_token=abc#x", "https://host/f?access_token=***#x"),
        ("s3://bucket/key", "s3://bucket/key"),
        ("user@host:/path", "user@host:/path"),
        ("https://host/?signal=1&tokens=3", "https://host/?signal=1&tokens=3"),
        ("https:/me:pw@host/x.nc", "https:/***@host/x.nc"),
        ("in /tmp/https:/me:pw@host", "in /tmp/https:/***@host"),
        ("s3:/me:pw@bucket", "s3:/***@bucket"),
        ("https://me:p/w@host/x", "https://***@host/x"),
        ("https://me:p?w@host/x", "https://***@host/x"),
        ("https://host:80/a@b?x=1", "https://host:80/a@b?x=1"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("abfs://box@account.dfs/x", "abfs://box@account.dfs/x"),
        ("zip://x.nc::https://me:pw@h/x.zip", "zip://x.nc::https://***@h/x.zip"),
        (
            "('https://me:pw@h', <URL('http://h/?sig=a')>)",
            "('https://***@h', <URL('http://h/?sig=***')>)",
        ),
        ("https://h/x#access_token=a&n=1", "https://h/x#access_token=***&n=1"),
        ("https://h/?AWSAccessKeyId=a&Expires=1", "https://h/?AWSAccessKeyId=***&Expires=1"),
        ("https://h/?X-Amz-Credential=a%2Fb", "https://h/?X-Amz-Credential=***"),
        ("https://h/?u=https%3A%2F%2Fme%3Apw%40h%2Fx", "https://h/?u=https%3A%2F%2F***%40h%2Fx"),
        ("u=https%3A%2F%2Fh%3Ftoken%3Dabc%26n%3D1", "u=https%3A%2F%2Fh%3Ftoken%3D***%26n%3D1"),
        ('{"u": "http://h/?token=a\\"}', '{"u": "http://h/?token=***\\"}'),
        ("/data/a@b/x=1&y.nc", "/data/a@b/x=1&y.nc"),
    ],
)
def test_urls_tell_neither_user_nor_token(text, found):
    assert mask_urls(text) == found
    assert mask_urls(found) == found


@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters="/?#'\"\\ "), min_size=1))
def test_no_user_of_a_url_is_left(user):
    user = "".join(user.split())
    assert f"{user}QQ" not in mask_urls(f"x https://{user}QQ@host/path y")


def test_options_by_name_tell_no_secret():
    given = {"token": "a b", "tokens": "5", "url": "https://me:abc@h/x", "steps": "4", "secret": ""}
    found = {"token": MASK, "tokens": "5", "url": "https://***@h/x", "steps": "4", "secret": ""}
    assert mask_values(given) == found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["run", "--api-key", "abc", "x"], ["run", "--api-key", "***", "x"]),
        (["run", "--api_key=abc"], ["run", "--api_key=***"]),
        (["run", "--secret-key", "abc"], ["run", "--secret-key", "***"]),
        (["PGPASSWORD=a", "HF_TOKEN_2=b"], ["PGPASSWORD=***", "HF_TOKEN_2=***"]),
        (["run", "--authToken=abc"], ["run", "--authToken=***"]),
        (["run", "--password", "two words", "x y"], ["run", "--password", "***", "x y"]),
        (["run", "--password=two words"], ["run", "--password=***"]),
        (["env", "WANDB_API_KEY=abc", "python"], ["env", "WANDB_API_KEY=***", "python"]),
        (["train.py", "--hf-token", "--fast"], ["train.py", "--hf-token", "--fast"]),
        (["train.py", "--tokens", "5"], ["train.py", "--tokens", "5"]),
        (["train.py", "+logger.password=abc"], ["train.py", "+logger.password=***"]),
        (["--uri", "http://a:b@c"], ["--uri", "http://***@c"]),
        (
            ["sh", "-c", "K_TOKEN=abc run --api-key x y"],
            ["sh", "-c", "K_TOKEN=*** run --api-key *** y"],
        ),
        (["-H", "Authorization: Bearer X"], ["-H", "Authorization: Bearer ***"]),
        (["-H", "authorization: Token X"], ["-H", "authorization: Token ***"]),
        (["-HAuthorization: X"], ["-HAuthorization: ***"]),
        (["-H", "X-Api-Key: a b"], ["-H", "X-Api-Key: ***"]),
        (["--auth", "Basic", "QQ==", "x"], ["--auth", "***", "***", "x"]),
        (["run", "--auth", "me:pw"], ["run", "--auth", "***"]),
        (["run", "--pass", "x", "--db_pass=y"], ["run", "--pass", "***", "--db_pass=***"]),
        (["run", "--bypass", "x", "PWD=/a"], ["run", "--bypass", "x", "PWD=/a"]),
        (["--with", '{"secret": "x", "a": 1}'], ["--with", '{"secret": "***", "a": 1}']),
        (["a", '--b={"a": [{"token": "x y"}]}'], ["a", '--b={"a": [{"token": "***"}]}']),
        (["--with", "{'api_key': 'x y', 'b': 2"], ["--with", "{'api_key': '***', 'b': 2"]),
        (["run", "--set", "a=1,token=x,b=2"], ["run", "--set", "a=1,token=***,b=2"]),
        (["run", "--option=token=x"], ["run", "--option=token=***"]),
        (["env", "TOKEN=a b c", "run"], ["env", "TOKEN=***", "run"]),
        (["sh", "-c", "TOKEN='a b' run"], ["sh", "-c", "TOKEN=*** run"]),
        (["sh", "-c", "TOKEN=a\\ b run"], ["sh", "-c", "TOKEN=*** run"]),
        (["sh", "-c", "run  TOKEN='a b run"], ["sh", "-c", "run  TOKEN=***"]),
        (['TOKEN="a b" run --pass "c d" -v'], ["TOKEN=*** run --pass *** -v"]),
        (
            ["bash", "-lc", 'curl -H "Authorization: Bearer X" h'],
            ["bash", "-lc", 'curl -H "Authorization: Bearer ***" h'],
        ),
        (["bash", "-c", "curl -H 'Api-Key: a b' h"], ["bash", "-c", "curl -H 'Api-Key: ***' h"]),
        (
            ["sh", "-c", 'run --with "{\\"secret\\": \\"x y\\"}" -v'],
            ["sh", "-c", 'run --with "{\\"secret\\": \\"***\\"}" -v'],
        ),
        (["-v", "/a/secret:/b", "host/auth:1.2"], ["-v", "/a/secret:/b", "host/auth:1.2"]),
        (["curl", "-u", "me:pw", "h"], ["curl", "-u", "me:***", "h"]),
        (["curl", "--user=me:pw"], ["curl", "--user=me:***"]),
        (["docker", "run", "-u", "1000:1000"], ["docker", "run", "-u", "1000:1000"]),
        (["python", "-u", "train.py"], ["python", "-u", "train.py"]),
        (["get", "me:pw@host"], ["get", "***@host"]),
        (["run", "image:tag@sha256:ab"], ["run", "image:tag@sha256:ab"]),
        (["--model", "basic", "data.nc"], ["--model", "basic", "data.nc"]),
    ],
)
def test_command_lines_tell_no_secret(words, found):
    assert mask_words(words) == found
    assert mask_words(found) == found


def test_values_tell_no_secret_however_deep():
    given = {"a": [{"token": {"b": 1}, "n": 5}], "api_key": "", "u": "s3://me:x@h", "auth": True}
    found = {"a": [{"token": MASK, "n": 5}], "api_key": "", "u": "s3://***@h", "auth": True}
    assert mask_values(given) == found


@given(
    st.lists(st.text(alphabet="ab\"'\\ =-:,{}$", max_size=12), max_size=3),
    st.sampled_from(["--token", "--db-pass", "--auth"]),
    st.sampled_from(["sh -c {}", "sh -c '{}", "{}"]),
)
def test_whatever_stands_around_an_option_its_secret_is_masked(words, option, shell):
    assert "QQ" not in str(mask_words([*words, option, "QQ"]))
    assert "QQ" not in str(mask_words([*words, f"{option}=QQ {words}"]))
    assert "QQ" not in str(mask_words(["sh", "-c", shell.format(f"x {option} QQ y")]))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", ["token" + "a-" * 40_000, "-" * 80_000 + "key", "{" + ", a" * 20_000]
)
def test_long_texts_take_no_longer_for_each_sign(text):
    """Minutes, were a name's beginning looked for from each place."""
    assert mask_values({"a": f"{text} token=QQ"}) == {"a": f"{text} token={MASK}"}


@pytest.fixture
def nothing_known(monkeypatch):
    monkeypatch.setattr(masking, "_known", set())


@pytest.mark.parametrize(
    ("words", "text", "found"),
    [
        (["https://me:hunter%402@h"], "no entry for hunter@2", "no entry for ***"),
        (["https://me:hunter@2x@h"], "host 'me:hunter%402x'", "host 'me:***'"),
        (["https://me:hunter22@h"], "Basic bWU6aHVudGVyMjI=", "Basic ***"),
        (["https://h/x?token=abcdefgh"], "name x?abcdefgh", "name x?***"),
        (["--option", "token=abcdefgh"], "'abcdefgh': unknown", "'***': unknown"),
        (["--api-key", "abcdefgh"], "abcdefgh-1", "***-1"),
        (["https://me:data@h"], "the database, data", "the database, ***"),
        (["https://me:pw@h/x"], "pw is short, me is a user", "pw is short, me is a user"),
    ],
)
def test_a_secret_that_was_given_is_found_wherever_it_is_told(nothing_known, words, text, found):
    note_secrets(words)
    assert mask_text(text) == found


def test_secrets_of_the_environment_are_told_to_nobody(nothing_known, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abc/defg+h")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/home/me/credentials")
    monkeypatch.setenv("MAX_TOKENS", "4096")
    said = "abc/defg+h in /home/me/credentials, 4096"
    assert mask_text(said) == "*** in /home/me/credentials, 4096"
