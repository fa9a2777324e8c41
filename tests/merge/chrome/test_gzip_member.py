"""Members of the merged trace: the same text gives the same bytes, wherever in memory it is compressed."""

from __future__ import annotations

import gzip
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.chrome.gzip_member import FIRST_BYTES, GzipMember, packed

MANY_ADDRESSES = """
from distprof.merge.chrome.gzip_member import GzipMember
# both the beginning and what stands from the third byte on come again: a wrong entry at either hides or adds a match
text = b'{"ph":"X","name":"a"},' + b"-0123456789-".join([b'{"ph":"X+', b'ph":"X","n+', b"end"]) * 3
text += bytes(range(256)) * 4
kept, found = [], set()
for _ in range(9000):
    member = GzipMember()
    found.add(member.add(text) + member.end())
    kept += [member, bytearray(70_000)]
print(len({id(member._packer) >> 16 for member in kept[::2]}), len(found))
"""


@pytest.mark.long
@pytest.mark.parametrize("_", range(3))
def test_bytes_do_not_depend_on_where_the_compressor_lies(_):
    done = subprocess.run([sys.executable, "-c", MANY_ADDRESSES], capture_output=True, text=True, check=True)
    addresses, outcomes = map(int, done.stdout.split())
    assert addresses > 8000
    assert outcomes == 1


@given(texts=st.lists(st.binary(min_size=4, max_size=60), min_size=1, max_size=5))
def test_a_member_holds_the_texts(texts):
    member = GzipMember()
    assert gzip.decompress(b"".join(map(member.add, texts)) + member.end()) == b"".join(texts)


@given(text=st.binary(max_size=3 * FIRST_BYTES))
def test_a_member_of_one_text(text):
    assert gzip.decompress(packed(text)) == text
