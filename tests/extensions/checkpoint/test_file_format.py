import hashlib
import io
import json
import os
import pathlib
import random

import numpy as np
import pytensor
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import synk
from support.checkpoints import counting, forge
from synk.extensions import checkpoint
from synk.extensions.checkpoint import file_format
from synk.extensions.checkpoint.file_format import (
    DIGEST_BYTES,
    HEADER_LIMIT,
    MAGIC,
    PREFIX,
    VERSION,
    CheckpointCorrupt,
    CheckpointVersion,
    OfRanks,
    Rows,
    ValueEntry,
    read_array,
    read_entries,
    write,
)

DTYPES = st.sampled_from(["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex128"])
VALUES = st.dictionaries(
    st.text(max_size=20),
    arrays(DTYPES, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
    max_size=5,
)


def written(values):
    file = io.BytesIO()
    write(file, values)
    return file.getvalue()


def small():
    W, rng = np.arange(6.0).reshape(2, 3), np.random.default_rng(1)
    return written({"W": W, "rng": rng, "rows": Rows((W[:1], W)), "own": OfRanks((W[0], W[1:]))})


def forged(header, arrays=b"", length=None, version=VERSION):
    """A file with a valid digest around any header."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = PREFIX.pack(MAGIC, version, len(header) if length is None else length) + header + arrays
    return content + hashlib.sha256(content).digest()


def read(content):
    return read_entries(io.BytesIO(content))


@settings(max_examples=15)
@given(VALUES)
def test_what_is_written_is_read(values):
    file = io.BytesIO(written(values))
    entries = read_entries(file)
    assert list(entries) == list(values)
    for name, value in values.items():
        again = read_array(file, entries[name])
        assert (again.dtype, again.shape) == (value.dtype, value.shape)
        assert again.tobytes() == value.tobytes()


def test_rows_of_ranks_are_one_array_and_what_is_their_own_is_several():
    parts, rng = tuple(np.split(np.arange(12.0).reshape(6, 2), [3, 3])), np.random.default_rng(1)
    file = io.BytesIO(
        written(
            {
                "a": np.ones(2),
                "rows": Rows(parts),
                "own": OfRanks(parts),
                "rngs": OfRanks((rng,)),
                "b": np.zeros(1),
            }
        )
    )
    entries = read_entries(file)
    assert entries["rows"].lengths == (3, 0, 3)
    assert read_array(file, entries["rows"].array).tolist() == np.concatenate(parts).tolist()
    assert [read_array(file, one).tolist() for one in entries["own"].entries] == [
        one.tolist() for one in parts
    ]
    assert entries["rngs"].entries[0].state == rng.bit_generator.state
    assert read_array(file, entries["b"]).tolist() == [0]


def test_values_of_ranks_in_a_file_of_version_1_are_told_from_names():
    header = {name: {"dtype": "<f8", "shape": [1]} for name in ("g", "rank 1/g", "rank 2/g", "rank 3/h")}
    content = forged(header, bytes(32), version=1)
    assert {name: type(entry).__name__ for name, entry in read(content).items()} == {
        "g": "OfRanksEntry",
        "rank 3/h": "ArrayEntry",
    }
    asked = read_entries(io.BytesIO(content), asked=["g", "rank 1/g"])
    assert list(asked) == list(header)


def test_arrays_in_any_order_of_axes_are_written_in_c_order():
    value = np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)
    file = io.BytesIO(written({"a": value}))
    np.testing.assert_array_equal(read_array(file, read_entries(file)["a"]), value)


def test_the_same_values_give_the_same_bytes():
    assert small() == small()


def test_every_flipped_byte_is_found():
    content = small()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << random.Random(position).randrange(8)
        with pytest.raises((CheckpointCorrupt, CheckpointVersion)):
            read(bytes(damaged))


def test_every_truncation_and_a_byte_too_many_are_found():
    content = small()
    for damaged in (*(content[:length] for length in range(len(content))), content + b"\0"):
        with pytest.raises(CheckpointCorrupt):
            read(damaged)


def test_another_version_or_kind_of_file_is_told():
    with pytest.raises(CheckpointVersion, match="version 3"):
        read(PREFIX.pack(MAGIC, 3, 0) + bytes(DIGEST_BYTES))
    with pytest.raises(CheckpointCorrupt, match="not a checkpoint"):
        read(b"PK\x03\x04" + bytes(1000))


def test_a_file_that_shrinks_while_it_is_read_is_found():
    content = small()
    entry = read(content)["W"]
    with pytest.raises(CheckpointCorrupt, match="cut short"):
        read_array(io.BytesIO(content[: entry.stop - 1]), entry)


def test_more_names_than_the_limit_are_neither_written_nor_read(monkeypatch):
    monkeypatch.setattr(file_format, "ENTRIES_LIMIT", 3)
    many = dict.fromkeys("abcd", 1)
    with pytest.raises(ValueError, match="4 names are more than 3; save fewer"):
        written(many)
    with pytest.raises(CheckpointCorrupt, match="4 names are more than 3"):
        read(forged({name: {"value": 1} for name in many}))
    assert len(read(written(dict.fromkeys("abc", 1)))) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "f" * 10**6, "shape": [1]},
        {"dtype": [["f", "<f8"]] * 10**5, "shape": [1]},
        {"dtype": "<f8", "shape": ["x"] * 10**5},
        {"dtype": "<f8", "shape": [2**62] * 64},
        {"state": ["x"] * 10**5},
        {"state": {"bit_generator": ["x"] * 10**5}},
    ],
)
def test_errors_are_short_whatever_a_file_says(fields):
    with pytest.raises(CheckpointCorrupt) as caught:
        read(forged({"a": fields}))
    assert len(str(caught.value)) < 500
    assert caught.value.__cause__ is None


def test_the_digest_of_more_than_is_of_use_is_not_computed(monkeypatch):
    content = bytearray(small())
    content[-40] ^= 1
    entries = read_entries(io.BytesIO(small()))
    monkeypatch.setattr(file_format, "HEADER_LIMIT", 400)
    assert read_entries(io.BytesIO(content), most=-400) == entries
    with pytest.raises(CheckpointCorrupt, match="SHA-256"):
        read_entries(io.BytesIO(content), most=168)


def test_plain_values_are_written_and_read():
    values = {"a": 1, "b": 0.1, "c": None, "d": "ü\ud800", "e": [True, {"f": -(2**70)}], "g": float("inf")}
    entries = read(written({"before": np.zeros(2), **values, "after": np.ones(2)}))
    assert {name: entries[name] for name in values} == {name: ValueEntry(x) for name, x in values.items()}


def described(dtype="<f8", shape=(1,)):
    """A file with a valid digest around an array of eight bytes."""
    return forged({"a": {"dtype": dtype, "shape": shape}}, bytes(8))


ODDITIES = ["|O", "O", "<U4", "|S3", "<M8[s]", "|V8", "f4,f4", "nonsense", 7]
OTHER_FORMS = [
    *(b"", b"\xff\xfe", b"[" * 100_000, [], "text", {"a": 1}, {"a": {}}, {"a": {"state": 3}}),
    {"a": {"dtype": "<f8"}},
    *({"a": {"dtype": "<f8", "shape": shape}} for shape in ([-1], [1.5], "ab")),
    *(
        {"a": {"dtype": "<f8", "shape": [2], "lengths": lengths}}
        for lengths in ([], [1], [3, -1], [True, 1], 2)
    ),
    {"a": {"dtype": "<f8", "shape": [], "lengths": [0]}},
    *({"a": {"ranks": ranks}} for ranks in ([], 3, {}, [{"value": 1}], [{"ranks": []}], [3], ["ranks"])),
    {"a": {"ranks": [{"dtype": "<f8", "shape": [0]}, {"state": {"bit_generator": "PCG64"}}]}},
]
REFUSED = [
    *((forged(b"{}", length=n), f"header of {n} bytes") for n in (HEADER_LIMIT + 1, 2**32 - 1, 3)),
    *((described(shape=shape), "the arrays end at byte") for shape in ([2**62, 2**62], [10**9], [0])),
    *(
        (described(shape=shape), "is not of lengths")
        for shape in ([1] * 65, [2**63], [True], [10**4000] * 10)
    ),
    *((described(dtype=dtype), "header") for dtype in ODDITIES),
    *((forged(header), "header") for header in OTHER_FORMS),
]


@pytest.mark.parametrize(("content", "said"), REFUSED, ids=range(len(REFUSED)))
def test_headers_that_no_array_or_file_has_are_refused_and_take_no_memory(content, said):
    with pytest.raises(CheckpointCorrupt, match=said):
        read(content)


def test_a_header_over_the_limit_is_not_written():
    with pytest.raises(ValueError, match="more than"):
        written({"n" * (HEADER_LIMIT + 1): np.zeros(1)})


def test_a_file_of_version_1_is_read(ranks):
    """Three ranks wrote it, after one step of `counting` on five rows."""
    path = pathlib.Path(__file__).with_name("checkpoint_version_1.ckpt")
    assert path.read_bytes()[8] == 1
    ranks(3, device="cpu")
    count, step = counting()
    rng = {variable.name: variable for variable in step.state}["rng"]
    assert checkpoint.load(path, step) == {"epoch": 3}
    assert synk.gather(count).tolist() == [2, 2, 1]
    drawn = [synk.get_value(rank, rng).random() for rank in range(3)]
    own = [np.random.Generator(np.random.PCG64(5).jumped(rank)) for rank in range(3)]
    for generator, n_rows in zip(own, (2, 2, 1), strict=True):
        generator.normal(size=n_rows)
    assert drawn == [generator.random() for generator in own]
    damaged = bytearray(path.read_bytes())
    for at in range(16, len(damaged), 37):
        damaged[at] ^= 1
        with pytest.raises(checkpoint.CheckpointCorrupt):
            file_format.read_entries(io.BytesIO(damaged))
        damaged[at] ^= 1


@pytest.mark.parametrize("kind", ["pipe", "folder", "/dev/zero"])
def test_only_regular_files_are_loaded(tmp_path, kind):
    path = tmp_path / kind  # of a device: itself
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(checkpoint.CheckpointCorrupt, match="not a regular file"):
        checkpoint.load(path, {})


def test_an_error_stays_short_whatever_the_file_says(tmp_path):
    names = {f"{number:01000}": {"dtype": "<f8", "shape": [0]} for number in range(1000)}
    path = forge(tmp_path / "forged", names)
    with pytest.raises(checkpoint.CheckpointNames, match="and 990 more; pass") as caught:
        checkpoint.load(path, {})
    assert len(str(caught.value)) < 3000


def test_a_sparse_file_of_a_terabyte_is_refused_at_once(tmp_path):
    path = forge(tmp_path / "forged", {"v": {"dtype": "<f8", "shape": [2**37]}})
    os.truncate(path, path.stat().st_size + 2**40)
    with pytest.raises(ValueError, match="137438953472"):
        checkpoint.load(path, pytensor.shared(np.zeros(3), name="v"))
