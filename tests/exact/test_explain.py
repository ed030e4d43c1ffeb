"""`explain` tells of outputs, updates and collectives, with the script's lines."""

import io

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.compile.programs.graphs.origin import user_lines
from synk.compile.programs.graphs.serialize import topological
from synk.exact.collectives.collective_op import CollectiveOp
from synk.exact.collectives.collectives import all_reduce
from synk.exact.define import define
from synk.exact.explain import explain
from synk.exact.for_ranks import definition_for_ranks
from synk.ops import batch_norm

x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")


def said(outputs=None, updates=None, **options):
    inputs = options.pop("inputs", [x, y])
    definition = define("f", inputs, outputs, updates=updates, on_unused_input="ignore", **options)
    return explain(definition, definition_for_ranks(definition))


def test_functions_tell_which_rows_they_gather(ranks):
    ranks(2)
    f = synk.function([x], [pt.sort(x, axis=0)[0], x.std(axis=0)])
    none = synk.function([x], [x.std(axis=0), x * 2])
    assert len(f.gathers()) == 1
    assert f.gathers()[0].startswith("all rows of 'x' gathered on every rank")
    assert none.gathers() == []
    assert synk.sequence(none, f).gathers() == f.gathers()


def test_outputs_tell_how_they_are_combined():
    largest = x.max()
    largest.name = "largest"
    lines = said([x.sum(), largest, x * 2, x.T, pt.constant(3.0), (x.mean(), "avg")])
    assert lines[0] == "'f': rows of 'x', 'y' scattered"
    assert "output 0: a sum over each rank's rows; they are added up as the call returns" in lines[1]
    assert "output 1 ('largest'): the largest of each rank's rows" in lines[2]
    assert "output 2: each rank's rows; they are joined along axis 0" in lines[3]
    assert "output 3 ('x.T'): each rank's rows; they are joined along axis 1" in lines[4]
    assert "output 4: the same on every rank, without a collective" in lines[5]
    assert "output 5 ('mean'): declared 'avg' of what each rank computes from its own rows" in lines[6]
    assert lines[7] == "  a call has no collective in the graph"


def test_a_collective_is_told_with_the_line_that_needs_it():
    squares = (x**2).mean()
    root = pt.sqrt(squares)  # this line
    lines = said([root])
    assert "output 0: the same on every rank, computed after collective 1" in lines[1]
    assert lines[2].startswith(
        "  collective 1: all-reduce by 'sum' of 1 value, 8 bytes, for Sqrt (test_explain.py:"
    )
    assert "root = pt.sqrt(squares)  # this line" in lines[2]
    assert lines[3] == "  a call has 1 collective in the graph"


def test_inserted_collectives_are_built_by_the_line_whose_value_they_complete():
    mean = x.mean(0)
    total = y.sum()
    largest = pt.sort(y)[-1]
    definition = define("f", [x, y], [pt.sqrt(mean), pt.log(total), largest])
    nodes = topological(definition_for_ranks(definition).outputs)
    joined, gathered = sorted(
        (node for node in nodes if isinstance(node.op, CollectiveOp)), key=lambda node: -len(node.inputs)
    )
    lines = user_lines(joined.outputs[0])
    assert [line[3].strip() for line in lines] == ["mean = x.mean(0)", "total = y.sum()"]
    for variable in gathered.outputs:
        assert [line[0] for line in user_lines(variable)] in ([], [__file__])


@pytest.mark.parametrize("told_by", ["a product", "a sum", "the update", "nothing"])
def test_bytes_are_known_where_shared_variables_tell_them(told_by):
    w = pytensor.shared(np.zeros((4, 3)), name="w")
    v = pytensor.shared(np.zeros(3), name="v")
    value = {
        "a product": pt.sqrt(((x @ w) ** 2).mean(0)),
        "a sum": v - 2 * pt.sqrt((x**2).mean(0)),
        "the update": pt.sqrt((x**2).mean(0)),
        "nothing": pt.sqrt((x**2).mean(0)).sum(),
    }[told_by]
    lines = said([value], inputs=[x]) if told_by == "nothing" else said(updates=[(v, value)], inputs=[x])
    size = "1 of unknown size" if told_by == "nothing" else "24 bytes"
    assert lines[2].startswith(
        f"  collective 1: all-reduce by 'sum' of 1 value, {size}, for Sqrt (test_explain.py:"
    )


def test_what_is_gathered_whole_is_told():
    table = pytensor.shared(np.zeros((4, 5)), name="table")
    z = x @ table
    lines = said([pt.sort(z, axis=0)[0]], inputs=[x])
    assert any("all rows gathered on every rank, 40 bytes a row, for SortOp" in line for line in lines)


def test_outputs_of_which_the_same_is_said_have_their_lines():
    total = y.sum()
    squares, named = (y**2).sum(), pt.exp(y).sum()
    named.name = "named"
    at = total.tag.trace[0][-1][1]
    lines = said([total, squares, y * 2, named, pt.tanh(y).sum(), pt.constant(1.0), pt.constant(2.0)])
    place = "test_explain.py:{}".format
    assert lines[1].startswith(
        f"  outputs 0 ({place(at)}); 1, 3 ('named') ({place(at + 1)}); 4 ({place(at + 4)}): a sum over each"
    )
    assert lines[3].startswith("  outputs 5, 6: the same on every rank")


def test_equal_words_are_said_once_for_several_updates():
    shared = [pytensor.shared(np.zeros(3), name=f"v{k}") for k in range(5)]
    lines = said(updates=[(one, one * 2) for one in shared])
    assert (
        lines[1]
        == "  updates of 'v0', of 'v1', of 'v2' and 2 more: the same on every rank, without a collective"
    )


def test_collectives_of_the_user_are_told():
    lines = said([all_reduce(x.sum()) * 2])
    assert any(line.startswith("  1 collective as written: AllReduceOp{op='sum'") for line in lines)


def test_declarations_are_named():
    rng = pt.random.shared_rng(seed=1)
    next_rng, draw = rng.normal(size=(x.shape[0],))
    total = pytensor.shared(np.zeros(3), name="total")
    lines = said(
        [(x[:, 0] * draw).sum()], [(rng, next_rng), (total, x.sum(0), "sum")], bcast_inputs=[pt.scalar("s")]
    )
    assert lines[0] == "'f': rows of 'x', 'y' scattered, 's' whole on every rank"
    text = "\n".join(lines)
    assert "each rank's own stream of random numbers" in text
    assert (
        "update of 'total': declared 'sum' over slices of what each rank computes from its own rows" in text
    )


def test_statistics_of_one_rank_are_named_as_a_declaration():
    images = pt.tensor4("images", dtype="float32")
    ones = pytensor.shared(np.ones(3, "float32"))
    running = [pytensor.shared(np.zeros(3, "float32"), name=name) for name in ("mean", "variance")]
    y, updates = batch_norm(images, ones, ones, *running, train=True)
    lines = said([y.sum()], updates, inputs=[images])
    (of_updates,) = [line for line in lines if line.startswith("  update")]
    assert "of 'mean', of 'variance': declared each rank's own by batch_norm(all_ranks=False)" in of_updates
    assert "averaged over rows" in of_updates
    assert lines[3].startswith("  declared by the graph: batch_norm(all_ranks=False), which takes")
    ((_, mean), *_) = updates
    assert (
        "output 0: declared each rank's own by batch_norm(all_ranks=False)"
        in said([mean], inputs=[images])[1]
    )


def test_a_sequence_tells_of_each_function_and_collective_in_turn(module_ranks, capsys):
    flat = pytensor.shared(np.zeros(3), name="flat")
    gradient = synk.function([x], updates=[(flat, x.sum(0), "sum")], name="gradient")
    update = synk.function([], updates=[(flat, flat * 2)], name="update")
    step = synk.sequence(gradient, (synk.all_reduce, flat, "sum"), update)
    file = io.StringIO()
    step.explain(file)
    lines = file.getvalue().splitlines()
    assert lines[0] == "1. 'gradient': rows of 'x' scattered"
    assert "2. collective all_reduce of 'flat'" in lines
    assert "3. 'update': nothing is scattered" in lines
    update.explain()
    assert capsys.readouterr().out.startswith("'update': nothing is scattered\n  update of 'flat': ")
