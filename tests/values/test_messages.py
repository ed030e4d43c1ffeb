import dataclasses
import inspect
import pickle
from importlib import import_module
from pkgutil import iter_modules

import pytest

from synk import collectives
from synk.collectives.gather import AllGatherStep, GatherStep
from synk.collectives.hand_out import AssignStep, BroadcastStep
from synk.collectives.read import CheckFiniteStep, FetchStep, ShapesStep
from synk.collectives.reduce import AllReduceStep, ReduceStep
from synk.values import messages
from synk.values.errors import Failure
from synk.values.messages import ArrayRef, Span

REF = ArrayRef(3, "<f4", (250, 784))
SPAN = Span(10, 20, listed=True)

EXAMPLES = [
    REF,
    ArrayRef(1, "<i8", (), 64),
    SPAN,
    messages.Several((messages.Detach(4), messages.Unshare(7))),
    messages.Attach(4, 1 << 40),
    messages.Detach(4),
    messages.Share(140_000_000_000_000, dict, ("matrix", "float32"), "w", {"value": [1.5]}),
    messages.Share(1, dict, None, None, None),
    messages.Unshare(7),
    messages.UseStorage(7, (REF, REF)),
    messages.Build(2, {"spec": "anything that pickles"}),
    messages.Forget(2),
    messages.Close(),
    messages.Call(2, (REF, REF), SPAN, (True, False), (SPAN, Span(0, 0, listed=False)), REF, 4),
    messages.Call(2, (), None, (), None, None, 1),
    messages.Call(2, (REF,), SPAN, (False,), None, REF, 1, gathered=7, ahead=messages.Ahead(8, SPAN)),
    messages.Ahead(8, SPAN),
    messages.Compile((1, 2)),
    AssignStep((1, 2), (REF, REF), ((SPAN, None), (None, SPAN)), None),
    BroadcastStep((1, 2)),
    AllReduceStep((1,), "avg"),
    ReduceStep((1,), "sum", in_place=True),
    AllGatherStep((1,)),
    GatherStep((3, 4), 1),
    FetchStep((1, 2), None),
    FetchStep((1, 2), 0),
    ShapesStep((1,)),
    CheckFiniteStep((1, 2)),
    messages.Run(9, (messages.Compile((1,)), AllReduceStep((5,), "max"))),
    messages.Reply(([1.5, None], (3, 4)), None),
    messages.Reply((), Failure(1, ValueError, "ValueError: x", "Traceback ..."), aborted=True),
]


def classes(module):
    found = [kind for _, kind in inspect.getmembers(module, inspect.isclass)]
    return [kind for kind in found if kind.__module__ == module.__name__]


MODULES = [import_module(f"synk.collectives.{found.name}") for found in iter_modules(collectives.__path__)]
OF_ALL = [kind for module in (messages, *MODULES) for kind in classes(module)]
STEPS = [kind for kind in OF_ALL if issubclass(kind, messages.Step) and kind is not messages.Step]
# Results have no equal.
PLAIN = [kind for kind in classes(messages) if kind not in (messages.Step, messages.Results, *STEPS)]


def fields(message):
    if isinstance(message, tuple):
        return message
    return [getattr(message, field.name) for field in dataclasses.fields(message)]


def test_there_is_an_example_of_every_message():
    assert len(STEPS) > 10
    assert {type(example) for example in EXAMPLES} == {*PLAIN, *STEPS}


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_travels(message):
    arrived = pickle.loads(pickle.dumps(message, protocol=5))
    assert arrived == message
    # Tuples of different messages are equal when their fields are: the class must arrive as well.
    assert type(arrived) is type(message)
    assert [type(value) for value in fields(arrived)] == [type(value) for value in fields(message)]


def test_steps_of_a_run_keep_their_class():
    steps = (
        BroadcastStep((1,)),
        AllGatherStep((1,)),
        ShapesStep((1,)),
        messages.Compile((1,)),
    )
    arrived = pickle.loads(pickle.dumps(messages.Run(1, steps), protocol=5))
    assert [type(step) for step in arrived.steps] == [type(step) for step in steps]


@pytest.mark.parametrize("kind", [*PLAIN, *STEPS], ids=lambda kind: kind.__name__)
def test_messages_are_plain_values_and_steps_can_be_run(kind):
    assert kind.__doc__
    methods = {name for name, value in vars(kind).items() if inspect.isfunction(value) and name[0] != "_"}
    assert methods == ({"run"} if kind in STEPS else set())
    assert hasattr(kind, "__slots__") or kind in PLAIN


def test_a_reply_is_of_a_run_that_went_on_unless_it_says_otherwise():
    assert messages.Reply((), None).aborted is False
