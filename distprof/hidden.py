"""Removes secrets from what is printed and stored: passwords in URLs, and values whose names look secret.

A name is checked word by word: `--hf-token`, `API_KEY` and `model.authToken` are secret, `--tokenizer` is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

MARK = "***"
"""Replaces a secret."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_WHOLE = frozenset((
    "auth", "authentication", "authorization", "bearer", "cookie", "creds", "jwt", "keys", "pass", "passcode", "pat",
    "pw", "pwd", "sig", "signature", "tokens"))
_ENDS = ("key", "token", "auth")
_WITHIN = ("password", "passwd", "passphrase", "secret", "credential")
_FLAGS = frozenset(("--on-finding", "--otlp"))
"""Flags whose whole values are secret: anyone who knows the address of a webhook or collector may post there."""
_QUANTITIES = frozenset((
    "batch", "count", "dim", "head", "heads", "hidden", "len", "length", "max", "min", "n", "num", "per", "size",
    "total", "tokens", "keys"))
"""If a name has one of these words, a number as value is not secret: `--num-key-value-heads 8`."""
_NUMBER = re.compile(r"[-+]?[0-9.,_]+(e[-+]?[0-9]+)?", re.IGNORECASE)
_SCHEME = r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*:/+)"
_PASSWORD = re.compile(rf"{_SCHEME}([^\s/?#:\"'<>]*):([^\s/\"'<>]+)@")
PASSWORD_WITH_SLASH = re.compile(rf"{_SCHEME}((?!\[)[^\s/?#@:\"'<>]*):(?!\d*(?:[/?#\s]|$))([^\s\"'<>]+)@")
"""Matches a URL whose password has an unescaped slash, which is not allowed there; excludes ports."""
_PARAMETER = re.compile(r"([?&;]([\w.%*-]+)=)([^&;\s\"'<>#]+)")
_USER = re.compile(r"(?<![^\s:/@,;=\"'])([^\s:/@,;=\"']*):([^\s/]+)@")
_NAME = re.compile(r"(?<![\w.*-])([\w.*-]+)[\"']?\s*[=:]\s*[\"']?")
_VALUE = re.compile(r"[^,;&\"'}\]\n]+")
_FLAG = re.compile(r"[\w.+/-]+")
_LEAST = 6
"""Minimum length of a secret that is searched for in all texts; a shorter one may be an ordinary word."""
_KNOWN: set[str] = set()


def learn(user: str, password: str) -> None:
    """Makes `hidden` remove a password from all texts of this process, in all encodings of URLs and headers."""
    import base64
    from urllib.parse import quote, unquote

    plain = unquote(password)
    whole = base64.b64encode(f"{unquote(user)}:{plain}".encode(errors="surrogateescape")).decode()
    _KNOWN.update(form for form in (password, plain, quote(plain, safe=""), whole) if len(form) >= _LEAST)


def hidden(text: str, arguments: Sequence[str] = ()) -> str:
    """Returns the text without passwords and secret parameters of URLs, and without known secrets.

    Args:
        text: Any text.
        arguments: Arguments of this process, whose secrets are also removed.
    """
    for secret in sorted(_KNOWN | _secrets_of(arguments), key=len, reverse=True):
        text = text.replace(secret, MARK)
    if "@" in text and ":/" in text:
        text = PASSWORD_WITH_SLASH.sub(rf"\1\2:{MARK}@", _PASSWORD.sub(rf"\1\2:{MARK}@", text))
    if "=" in text and "?" in text:
        text = _PARAMETER.sub(lambda found: found[1] + (MARK if is_secret(found[2], found[3]) else found[3]), text)
    return text


def is_secret(name: str, value: str = "") -> bool:
    """Returns whether the value of this name is secret; always True for a name that is itself hidden."""
    if MARK in name or name in _FLAGS:
        return True
    words = [word.lower() for word in _WORD.findall(name)]
    if _NUMBER.fullmatch(value) and not _QUANTITIES.isdisjoint(words):
        return False
    return any(word in _WHOLE or word.endswith(_ENDS) or any(one in word for one in _WITHIN) for word in words)


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of a command with `***` for passwords and for values whose names look secret.

    A value is what follows a flag, `=` or `:`. An argument after a flag without a value may also be hidden.
    """
    return list(_shown(arguments, []))


def _secrets_of(arguments: Sequence[str]) -> set[str]:
    found = list[str]()
    for _ in _shown(arguments, found):
        pass
    return {secret for secret in found if len(secret) >= _LEAST}


def _shown(arguments: Sequence[str], found: list[str]) -> Iterator[str]:
    """Yields the arguments without secrets, and appends the secrets to `found`."""
    flag = ""
    for word in arguments:
        if flag and not word.startswith("--") and is_secret(flag, word):
            found.append(word)
            yield MARK
            flag = ""
            continue
        yield _argument(word, found)
        flag = word if word.startswith("-") and "=" not in word else ""


def _argument(word: str, found: list[str]) -> str:
    name, equals, value = word.partition("=")
    if equals and _FLAG.fullmatch(name) and is_secret(name, value):
        found.append(value)
        return f"{name}={MARK}" if value else word
    return _values(_USER.sub(rf"\1:{MARK}@", hidden(word)) if "@" in word else hidden(word), found)


def _values(word: str, secrets: list[str]) -> str:
    """Returns an argument without secret values inside, such as of JSON, a header, or NAME=VALUE pairs."""
    pieces, at = list[str](), 0
    while (found := _NAME.search(word, at)) is not None:
        pieces.append(word[at:found.end()])
        at = found.end()
        value = _VALUE.match(word, at) if is_secret(found[1]) else None  # matching every value might be slow
        if value is not None and is_secret(found[1], value[0].strip()):
            secrets.append(value[0].strip())
            pieces.append(MARK)
            at = value.end()
    return "".join((*pieces, word[at:]))
