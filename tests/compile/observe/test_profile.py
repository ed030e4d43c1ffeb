import html
import json
import re
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg.summary import Det
from pytensor.tensor.math import Dot

from support.cases.unary_op import UnaryOp
from synk.compile import ArrayLinker, array_funcify, array_mode, source_of
from synk.compile.native.compiler import find_compiler
from synk.compile.observe.profile import Ledger, Profile, memory_of, observed_mode
from synk.compile.observe.report import TOP, Record, Report, Slice, table
from synk.compile.tables import flops_of

MILLISECOND = 1_000_000  # nanoseconds

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


class Sleep(UnaryOp):
    """Pass a copy on, after a while."""

    __props__ = ("seconds",)

    def __init__(self, seconds):
        self.seconds = seconds


@array_funcify.register(Sleep)
def sleep(op, node, xp):
    def wait(x):
        time.sleep(op.seconds)
        return x.copy()

    return wait


def plain_mode(profile):
    """Return a mode that leaves the graph as it is written."""
    return Mode(ArrayLinker(observe=profile), None)


def profiled(n_calls=3):
    x, w = pt.dmatrix("x"), pytensor.shared(np.ones((5, 2)), name="w")
    profile = Profile()
    product = pt.dot(x, w)
    function = pytensor.function([x], [Sleep(0.02)(product).sum(), product], mode=plain_mode(profile))
    with profile.memory():
        function(np.ones((4, 5)))
    for _ in range(n_calls):
        with profile.call("f"):
            function(np.ones((4, 5)))
    return profile.report("f")


def test_time_in_a_collective_is_not_that_of_the_node_that_calls_it_too():
    profile = Profile()
    meet = profile.collective("all_reduce", lambda x: time.sleep(0.02) or x)
    x = pt.dmatrix("x")
    node = Sleep(0.0)(x).owner
    watched = profile(node, lambda x: meet(x).copy())
    with profile.call("f"):
        watched(np.ones((4, 5)))
    report = profile.report("f")
    assert report.collective_seconds >= 0.02
    assert report.outside_seconds >= 0


def test_nodes_are_timed_by_node_and_by_op():
    report = profiled()
    assert report.n_calls == 3
    (slept,) = [row for row in report.rows if row["op"] == "Sleep"]
    assert slept["node"].startswith("Sleep{seconds=0.02}(")
    assert slept["runs"] == 3
    assert slept["seconds"] >= 0.06
    assert slept["outputs"] == ["float64 (4, 2)"]
    assert slept["built"].startswith(__file__)
    assert {row["index"] for row in report.rows} == set(range(len(report.rows)))
    times = [row["seconds"] for row in report.rows]
    assert times == sorted(times, reverse=True)
    ops = {group["op"]: group for group in report.ops}
    assert ops["Sleep"]["nodes"] == 1
    assert ops["Sleep"]["seconds"] == slept["seconds"]
    assert sum(group["flops"] for group in report.ops) == 3 * 2 * 4 * 5 * 2


def test_times_add_up():
    report = profiled()
    assert sum(row["seconds"] for row in report.rows) == pytest.approx(report.node_seconds)
    assert sum(group["seconds"] for group in report.ops) == pytest.approx(report.node_seconds)
    assert sum(row["share"] for row in report.rows) == pytest.approx(report.node_seconds / report.seconds)
    assert 0 < report.node_seconds < report.seconds
    assert report.outside_seconds == pytest.approx(report.seconds - report.node_seconds)


def test_without_calls_nodes_are_all():
    profile = Profile()
    x = pt.dvector("x")
    function = pytensor.function([x], pt.exp(x), mode=array_mode(ArrayLinker(observe=profile)))
    function([1.0])
    report = profile.report()
    assert report.n_calls == 0
    assert report.rows[0]["runs"] == 1
    assert report.rows[0]["share"] == 1
    assert "no calls" in str(report)


def test_an_empty_report_can_be_read():
    report = Profile().report()
    assert report.rows == []
    assert "no calls" in str(report)


def test_values_are_those_of_the_plain_function():
    x = pt.dmatrix("x")
    outputs = [(x @ x.T).sum(axis=0), pt.exp(x)]
    value = np.arange(6.0).reshape(2, 3)
    plain = pytensor.function([x], outputs, mode=array_mode())(value)
    watched = pytensor.function([x], outputs, mode=array_mode(ArrayLinker(observe=Profile())))(value)
    for one, other in zip(plain, watched, strict=True):
        np.testing.assert_array_equal(one, other)


def test_memory_is_that_of_living_arrays():
    x = pt.dvector("x")
    a = Sleep(0)(x)
    b = Sleep(0.0)(a)  # a and b live here, and a again below
    c = Sleep(0)(b)
    profile = Profile()
    function = pytensor.function([x], c.sum(), mode=plain_mode(profile))
    with profile.memory():
        function(np.ones(1000))
        function(np.ones(10))
    report = profile.report()
    assert report.peak_bytes == 16_000
    assert report.peak_at == str(function.maker.fgraph.toposort()[1])
    assert report.rows == []  # not timed
    assert "peak memory 15.62 KiB" in str(report)


def test_a_ledger_counts_no_memory_twice():
    ledger = Ledger()
    x = np.ones(10)
    y = np.ones(20)
    ledger.add("reads", [x], [x, x[1:]])
    assert ledger.current == 0
    ledger.add("makes", [x], [y, y[::2], np.float64(1), 3])
    ledger.add("passes on", [x], [y[3:]])
    assert ledger.current == 160
    view = y[1:]
    del y
    assert ledger.current == 160
    del view
    assert (ledger.current, ledger.peak, ledger.at) == (0, 160, "makes")


def test_memory_of_a_view_is_that_of_its_base():
    x = np.ones((4, 4))
    assert memory_of(x[1:].T[2:]) is x
    assert memory_of(x) is x
    assert memory_of(3) == 3


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda a, b, v: a @ b, 2 * 3 * 4 * 5),
        (lambda a, b, v: a @ v, 2 * 3 * 4),
        (lambda a, b, v: pt.matmul(a[None], b[None]), 2 * 3 * 4 * 5),
        (lambda a, b, v: (a @ b) * 0.5 + pt.ones((3, 5)) * 2, 2 * 3 * 4 * 5),
    ],
)
def test_products_are_counted(build, expected):
    a, b, v = pt.dmatrix("a"), pt.dmatrix("b"), pt.dvector("v")
    profile = Profile()
    mode = array_mode(ArrayLinker(observe=profile, native=False))
    function = pytensor.function([a, b, v], build(a, b, v), mode=mode, on_unused_input="ignore")
    function(np.ones((3, 4)), np.ones((4, 5)), np.ones(4))
    assert sum(row["flops"] for row in profile.report().rows) == expected


def test_what_is_not_known_is_not_counted():
    assert flops_of(pt.exp(pt.dvector()).owner.op) is None
    assert flops_of(Blockwise(Det())) is None


def test_products_of_batches_are_counted_as_those_of_their_matrices():
    stack = np.ones((6, 3, 4)), np.ones((6, 4, 5))
    assert flops_of(Blockwise(Dot()))(stack, [stack[0] @ stack[1]]) == 2 * 6 * 3 * 4 * 5


def made_up():
    """Return a report of known times."""
    dot = Record("train", "Dot", "Dot(x, w)", 0, "model.py:7", lambda inputs, results: 4_000_000)
    exp = Record("train", "Exp", "Exp(Dot.0)", 1, "", None)
    reduced = Record("", "all_reduce", "all_reduce", 0, "", None)
    slices = []
    for start in (0, 10):
        for record, begin, length in ((dot, 1, 4), (exp, 5, 2), (reduced, 7, 2)):
            outputs = ((np.dtype("float32"), (2, 3)),)
            record.add(length * MILLISECOND, (), (), outputs)
            begin = (start + begin) * MILLISECOND
            slices.append(Slice(record.node, record.op, begin, begin + length * MILLISECOND, outputs))
    calls = [Slice("train", "call", at * MILLISECOND, (at + 10) * MILLISECOND, ()) for at in (0, 10)]
    ledger = Ledger()
    ledger.peak, ledger.at = 3 << 20, "Dot(x, w)"
    return Report("train", 0, [exp, dot], [reduced], calls, slices, ledger)


TABLE = """\
Profile of 'train', rank 0: 2 calls, 10.000 ms each
  nodes 6.000 ms (60%), collectives 2.000 ms (20%), outside 2.000 ms (20%)
  peak memory 3.00 MiB, at Dot(x, w)

Op          nodes  runs  ms/call  share  µs/run  GFLOP/s
Dot             1     2    4.000  40.0%  4000.0      1.0
Exp             1     2    2.000  20.0%  2000.0
all_reduce      1     2    2.000  20.0%  2000.0

Node        number  runs  ms/call  share  µs/run  GFLOP/s  outputs         built at
Dot(x, w)        0     2    4.000  40.0%  4000.0      1.0  float32 (2, 3)  model.py:7
Exp(Dot.0)       1     2    2.000  20.0%  2000.0           float32 (2, 3)"""


def test_the_table():
    assert str(made_up()) == TABLE


def test_long_tables_are_cut():
    lines = table(("name", "n"), [("x" * k, str(k)) for k in range(1, TOP + 1)], rest=2)
    assert len(lines) == TOP + 2
    assert lines[-1] == "... and 2 more"
    assert {len(line) for line in lines[:-1]} == {TOP + 4}


def native(profile=None):
    """Return a function that is one region; its matrix has 300 rows of 4."""
    x, i = pt.dmatrix("x"), pt.lvector("i")
    w = pytensor.shared(np.ones(4), name="w")
    picked = (x * 2)[i]
    mode = array_mode(ArrayLinker(native=True, observe=profile))
    return pytensor.function([x, i], pt.exp(picked @ w).sum(), mode=mode)


@needs_compiler
def test_a_region_is_timed_as_a_whole_and_its_nodes_are_listed_with_their_lines():
    profile = Profile()
    function = native(profile)
    for rows in (100, 50, 100):
        function(np.ones((300, 4)), np.arange(rows))
    report = profile.report()
    (row,) = report.rows
    assert (row["op"], row["runs"]) == ("Region", 3)
    inside = {op.split("{")[0].rstrip("1"): built for op, built in row["inside"]}
    line = int(inside["Mul"].rpartition(":")[2])
    assert inside["AdvancedSubtensor"] == inside["Mul"] == f"{__file__}:{line}"
    assert inside["Gemv"] == f"{__file__}:{line + 2}"
    (listed,) = [text for text in str(report).splitlines() if text.startswith("  Mul ")]
    assert listed.endswith(f"test_profile.py:{line}")


def test_of_many_nodes_in_a_region_the_table_has_the_first():
    record = Record("f", "Region", "Region(x)", 0, "", None, [(f"Node{k}", "") for k in range(TOP + 3)])
    record.add(1, (), (), ())
    text = str(Report("f", 0, [record], [], [], [], Ledger()))
    assert f"  Node{TOP - 1}\n  ... and 3 more" in text


@needs_compiler
def test_the_source_of_a_function_has_the_c_of_its_regions_with_nodes_and_lines():
    function = native()
    text = source_of(function)
    assert text.startswith(function.vm.jit_fn.source)
    name = re.search(r"= (Region\w*)\(", text)[1]
    assert re.search(
        rf"/\* {name}\n   0: Mul    .*test_profile.py:\d+\n   1: AdvancedSubtensor.*    .*test_pro", text
    )
    assert f"void *{name}(void *self" in text
    assert re.search(r"/\* 1: AdvancedSubtensor.* \*/\n", text)


def test_the_source_of_a_function_says_why_a_node_is_in_no_region():
    x = pt.dmatrix("x")
    texts = {}
    for wanted in (True, False):
        function = pytensor.function([x], pt.sort(x * 2), mode=array_mode(ArrayLinker(native=wanted)))
        texts[wanted] = source_of(function)
        program = re.sub("  #.*", "", texts[wanted])
        assert program.startswith(function.vm.jit_fn.source)
    assert re.search(r"v\d+ = SortOp_\d+\(.*\)  # no C text for SortOp.*\n", texts[True])
    assert "#" not in texts[False]


def test_a_function_of_another_mode_has_no_source_and_the_error_says_which_has():
    x = pt.dvector("x")
    plain = pytensor.function([x], x * 2, mode="FAST_COMPILE")
    for other, name in ((plain, "those of VMLinker"), (len, "<built-in function len>")):
        with pytest.raises(TypeError, match=rf"mode=synk.compile.array_mode\(\)\), not {name}"):
            source_of(other)


def test_the_trace_is_what_viewers_read(tmp_path):
    made_up().save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    process, *slices = events
    assert process == {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "rank 0"}}
    assert [(event["name"], event["ts"], event["dur"]) for event in slices] == [
        ("train", 0, 10_000),
        ("train", 10_000, 10_000),
        ("Dot(x, w)", 1_000, 4_000),
        ("Exp(Dot.0)", 5_000, 2_000),
        ("all_reduce", 7_000, 2_000),
        ("Dot(x, w)", 11_000, 4_000),
        ("Exp(Dot.0)", 15_000, 2_000),
        ("all_reduce", 17_000, 2_000),
    ]
    assert all(event["ph"] == "X" and event["pid"] == 0 for event in slices)
    assert slices[2]["cat"] == "Dot"
    assert slices[2]["args"] == {"outputs": ["float32 (2, 3)"]}


def test_programs_of_one_profile_are_told_apart():
    x = pt.dvector("x")
    profile = Profile()
    for name, output in (("one", pt.exp(x)), ("two", pt.log(x))):
        mode = observed_mode(array_mode(), profile.of(name))
        pytensor.function([x], output, mode=mode)([1.0])
    rows = {row["program"]: row for row in profile.report().rows}
    assert rows["one"]["node"].startswith("Exp")
    assert rows["two"]["node"].startswith("Log")
    assert rows["two"]["index"] == 0


def test_other_modes_cannot_be_watched():
    mode = array_mode(ArrayLinker(host_ops="raise"))
    watched = observed_mode(mode, Profile())
    assert watched.linker.host_ops == "raise"
    assert mode.linker.observe is None
    for other in ("FAST_COMPILE", Mode("py")):
        with pytest.raises(TypeError, match="makes no array programs"):
            observed_mode(other, Profile())


def test_a_notebook_shows_the_table():
    report = profiled()
    assert html.escape(str(report)) in report._repr_html_()
