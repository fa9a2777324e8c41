"""Secrets of command lines and URLs: no letter of them is left, and what is none stays as it is."""

from __future__ import annotations

import json
import shlex
import time
from base64 import b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof import hidden as rooms
from distprof.hidden import MARK, hidden, is_secret, learn, without_secrets

SECRET = "s3cr3t-Ωx"
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="*/@ \t\n"), min_size=1).map(
    lambda text: f"Zq{text}qZ")
"""Values that no name and no MARK contains; a slash or blank belongs into no URL."""
NAMES = st.sampled_from((
    "hf-token", "HF_TOKEN", "hfToken", "wandb_api_key", "apiKey", "APIKey", "secret", "client_secret", "password",
    "db-passwd", "auth", "oauth", "credentials", "aws_secret_access_key", "X-Amz-Signature", "model.auth.token",
    "Authorization", "pw"))
PLAIN = ("tokenizer", "author", "lr", "keyboard_layout", "monitor", "hidden_size", "out")


@pytest.mark.long
@given(NAMES, VALUES)
def test_a_value_of_a_secret_name_is_not_stored(name: str, value: str) -> None:
    for arguments in ([f"--{name}", value], [f"-{name}", f"-{value}"], [f"--{name}={value}"], [f"{name}={value}"],
                      [f"+{name}={value}"], [f"--env=A=1,{name}={value}"] if "," not in value else []):
        shown = without_secrets(["train.py", *arguments, "data"])
        assert value not in " ".join(shown), shown
        assert (shown[0], shown[-1]) == ("train.py", "data")
        assert without_secrets(shown) == shown


@given(NAMES, st.text("abcXYZ0189+_.-", min_size=1).map(lambda text: f"Zq{text}qZ"))
def test_nor_is_one_within_an_argument(name: str, value: str) -> None:
    for word in (json.dumps({"lr": 1, name: value}), json.dumps({name: value}, indent=1), f"{name}: Bearer {value}",
                 f"http://host:80/run?a=1&{name}={value}", f"{{{name}: '{value}'}}"):
        assert value not in without_secrets([word])[0]


@given(VALUES, st.sampled_from(("http", "s3", "postgres+psycopg", "sftp")), st.sampled_from(("", "alice", "a%40b")))
def test_passwords_of_urls_are_left_out(value: str, scheme: str, user: str) -> None:
    for password in (value, quote(value, safe=""), f"{value}@{value}", f"{value}/{value}"):
        url = f"{scheme}://{user}:{password}@host:80/run"
        if not set("\"'<>") & set(password):
            assert "Zq" not in hidden(f"cannot reach {url}: 404, url={url!r}")
        assert "Zq" not in without_secrets([url])[0]
    assert "Zq" not in without_secrets([f"{user}:{value}@host"])[0]


@pytest.mark.parametrize("name", PLAIN)
def test_other_names_keep_their_values(name: str) -> None:
    words = [f"--{name}", "value", f"--{name}=value", json.dumps({name: "value"}), f"{name}=value"]
    assert without_secrets(words) == words


def test_numbers_of_shapes_are_no_secrets() -> None:
    words = shlex.split("--num-key-value-heads 8 --max-new-tokens 1e3 --head_key_dim=64 --n_tokens=10_000")
    assert without_secrets(words) == words
    assert is_secret("password", "1234") and is_secret("pin_token", "1234")


@pytest.mark.parametrize("text", [
    "http://host:8080/path@v1/run", "http://[::1]:80/x@y", "s3://bucket/run", "git@host:path", "see http://h/x?step=3&lr=1",
    "aten::add: 3 @ 4", "C:/a b/c"])
def test_texts_without_secrets_stay(text: str) -> None:
    assert hidden(text) == text


def test_a_password_that_was_learnt_is_hidden_in_all_its_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_KNOWN", set())
    learn("alice", quote(SECRET))
    for form in (SECRET, quote(SECRET), b64encode(f"alice:{SECRET}".encode()).decode()):
        assert hidden(f"the server says {form}!") == f"the server says {MARK}!"
    learn("bob", "run")  # a word of any text
    assert hidden("run") == "run"


@given(NAMES, st.text("abcXYZ0189", min_size=1).map(lambda text: f"Zq{text}qZ"))
def test_a_password_that_is_a_name_too_does_not_show_what_has_that_name(name: str, value: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rooms, "_KNOWN", set())
        learn("alice", name)
        for word in (f"--env=A=1,{name}={value}", json.dumps({"lr": 1, name: value}), f"http://h/run?a=1&{name}={value}"):
            assert value not in without_secrets([word])[0] and value not in hidden(f"?{name}={value}")


def test_secrets_of_the_arguments_are_hidden_in_what_an_exception_says() -> None:
    said = hidden(f"bad token {SECRET} of 8", ["train.py", "--token", SECRET, "--key", "8"])
    assert said == f"bad token {MARK} of 8"


@pytest.mark.parametrize("letter", ["a", ":", "=", "@", "a:", "a=", "a@:", ":/", "?a="])
def test_a_long_argument_takes_no_time(letter: str) -> None:
    began = time.process_time()
    without_secrets([letter * 40_000])
    assert time.process_time() - began < 5
