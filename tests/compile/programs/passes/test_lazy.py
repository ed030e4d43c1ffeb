import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.destroyhandler import DestroyHandler
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from support.cases.unary_op import UnaryOp
from synk.compile import ArrayLinker, array_funcify, array_mode, emit
from synk.compile.compat import IfElse, optional_class
from synk.compile.programs.passes.lazy import plan_lazy

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")

BARE = RewriteDatabaseQuery(include=["minimum_compile"])


class Step(UnaryOp):
    """Add one, and note that it has run; in place if asked to be."""

    __props__ = ("name", "inplace")

    def __init__(self, name, inplace=False):
        self.name, self.inplace = name, inplace
        if inplace:
            self.destroy_map = {0: [0]}


ran: list[str] = []


@array_funcify.register(Step)
def step(op, node, xp):
    def add(x):
        ran.append(op.name)
        if op.name == "fails":
            raise ArithmeticError("no")
        if op.inplace:
            x += 1
            return x
        return x + 1

    return add


@pytest.fixture(autouse=True)
def nothing_has_run():
    ran.clear()


def run(program, *values):
    """Return the first result, and what has run for it."""
    ran.clear()
    (result, *_) = program(*values)
    return result.tolist(), sorted(ran)


def graph(inputs, outputs):
    return FunctionGraph(inputs, outputs, clone=False, features=[DestroyHandler()])


x, y = pt.dvector("x"), pt.dvector("y")
c, d = pt.bscalar("c"), pt.bscalar("d")
VALUES = np.array([1.0, 2.0]), np.array([10.0, 20.0])
FALSE, TRUE = np.array(0, "int8"), np.array(1, "int8")


def test_order_without_a_choice_stays():
    fgraph = graph([x, y], [pt.exp(x) + y])
    order = fgraph.toposort()
    assert plan_lazy(fgraph, order) == (order, {})


def test_only_the_branch_taken_runs():
    output = ifelse(c, Step("then2")(Step("then1")(x)), Step("otherwise")(y))
    program = emit(graph([c, x, y], [output]), np)
    assert run(program, TRUE, *VALUES) == ([3, 4], ["then1", "then2"])
    assert run(program, FALSE, *VALUES) == ([11, 21], ["otherwise"])
    assert program.source.count("if ") == 2


def test_what_both_branches_need_runs_once():
    shared = Step("shared")(x)
    output = ifelse(c, Step("then")(shared), Step("otherwise")(shared))
    program = emit(graph([c, x], [output, x]), np)
    assert run(program, TRUE, VALUES[0]) == ([3, 4], ["shared", "then"])
    assert run(program, FALSE, VALUES[0]) == ([3, 4], ["otherwise", "shared"])


def test_what_is_needed_anyway_runs_always():
    used = Step("used")(x)
    program = emit(graph([c, x, y], [ifelse(c, used, y), used * 2]), np)
    assert run(program, FALSE, *VALUES) == ([10, 20], ["used"])


def test_choices_with_the_same_condition():
    shared = Step("shared")(x)
    outputs = [ifelse(c, shared, y), ifelse(c, y, Step("second")(y)), ifelse(c, [shared, y], [y, y])[0]]
    program = emit(graph([c, x, y], outputs), np)
    assert run(program, TRUE, *VALUES) == ([2, 3], ["shared"])
    assert run(program, FALSE, *VALUES) == ([10, 20], ["second"])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (TRUE, TRUE, ([4, 5], ["a", "condition", "inner"])),
        (TRUE, FALSE, ([12, 22], ["b", "condition", "inner"])),
        (FALSE, TRUE, ([11, 21], ["otherwise"])),
        (FALSE, FALSE, ([11, 21], ["otherwise"])),
    ],
)
def test_choice_within_a_choice(first, second, expected):
    inner = ifelse(Step("condition")(d) > 1, Step("a")(x) + 1, Step("b")(y))
    output = ifelse(c, Step("inner")(inner), Step("otherwise")(y))
    program = emit(graph([c, d, x, y], [output]), np)
    assert run(program, first, second, *VALUES) == expected


def test_condition_that_needs_what_it_guards():
    total = Step("total")(x)
    output = ifelse(total.sum() > 4, total, Step("otherwise")(y))
    program = emit(graph([x, y], [output]), np)
    assert run(program, *VALUES) == ([2, 3], ["total"])
    assert run(program, -VALUES[0], VALUES[1]) == ([11, 21], ["otherwise", "total"])


def test_condition_that_destroys_what_a_branch_reads():
    made = x * 2
    condition = Step("destroys", inplace=True)(made).sum() > 5
    output = ifelse(condition, Step("reads")(made), y)
    fgraph = graph([x, y], [output])
    order, guards = plan_lazy(fgraph, fgraph.toposort())
    assert guards == {}
    assert [node.op.name for node in order if isinstance(node.op, Step)] == ["reads", "destroys"]
    program = emit(fgraph, np)
    assert run(program, *VALUES) == ([3, 5], ["destroys", "reads"])
    assert run(program, -VALUES[0], VALUES[1]) == ([10, 20], ["destroys", "reads"])


def test_conditions_come_early():
    then = Step("then")(x)
    fgraph = graph([x, y], [ifelse(Step("condition")(y).sum() > 5, then, y)])
    # As given, the branch comes before its condition.
    order = sorted(fgraph.toposort(), key=lambda node: node is not then.owner)
    order, guards = plan_lazy(fgraph, order)
    names = [node.op.name for node in order if isinstance(node.op, Step)]
    assert names == ["condition", "then"]
    assert list(guards) == [then.owner]
    assert [true for _, true in guards[then.owner]] == [True]


def test_nodes_of_one_guard_stand_in_one_block():
    then = [Step("a")(x), Step("b")(y)]
    always = [x * 2, y * 2]
    fgraph = graph([c, x, y], [ifelse(c, then[0] + then[1], y), *always])
    order = [then[0].owner, always[0].owner, then[1].owner, always[1].owner]
    order += [node for node in fgraph.toposort() if node not in order]
    program = emit(fgraph, np, order)
    assert program.source.count("if ") == 1


def test_names_are_deleted_on_both_sides_of_a_block():
    output = ifelse(c, Step("then")(x * 2), y)
    program = emit(graph([c, x, y], [output]), np)
    then, otherwise = program.source.split("    else:\n")
    assert "del v1" in then
    assert otherwise.startswith("        v6 = None\n        del v1\n    v7 = ")


def test_error_in_a_block_names_its_node():
    fails = Step("fails")(x)
    program = emit(graph([c, x, y], [ifelse(c, fails, y)]), np)
    with pytest.raises(ArithmeticError) as caught:
        program(TRUE, *VALUES)
    assert program.failed_node(caught.value) is fails.owner
    assert run(program, FALSE, *VALUES) == ([10, 20], [])


@pytest.mark.parametrize("condition", [0, 1])
@pytest.mark.parametrize("mode", [array_mode(), Mode(ArrayLinker(), BARE)], ids=["rewritten", "bare"])
def test_compiled_functions_are_lazy(mode, condition):
    output = ifelse(c, Step("then")(x), Step("otherwise")(y))
    function = pytensor.function([c, x, y], output, mode=mode)
    np.testing.assert_array_equal(function(condition, *VALUES), VALUES[1 - condition] + 1)
    assert ran == [["otherwise", "then"][condition]]


@pytest.mark.parametrize("condition", [0, 1])
def test_gradient_of_a_choice(compare, condition):
    a, b = pt.dmatrix("a"), pt.dmatrix("b")
    output = ifelse(c, pt.exp(a @ b), ifelse(d, b @ a, b * 2))
    inputs, values = [c, d, a, b], [np.int8(condition), np.int8(1), np.eye(2), np.ones((2, 2))]
    compare(inputs, [output, *pytensor.grad(output.sum(), [a, b])], [np.asarray(value) for value in values])


def test_view_of_the_first_branch():
    made = x * 2
    op = IfElse(n_outs=1, as_view=True)
    output = Step("last", inplace=True)(op(c, Step("then")(made), y * 3))
    program = emit(graph([c, x, y], [output]), np)
    assert run(program, TRUE, *VALUES) == ([4, 6], ["last", "then"])
    assert run(program, FALSE, *VALUES) == ([31, 61], ["last"])
