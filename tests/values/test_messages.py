import dataclasses
import inspect
import pickle

import pytest

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
    messages.Assign((1, 2), (REF, REF), ((SPAN, None), (None, SPAN)), None),
    messages.Broadcast((1, 2)),
    messages.AllReduce((1,), "avg"),
    messages.Reduce((1,), "sum", in_place=True),
    messages.AllGather((1,)),
    messages.Gather((3, 4), 1),
    messages.Fetch((1, 2), None),
    messages.Fetch((1, 2), 0),
    messages.Shapes((1,)),
    messages.CheckFinite((1, 2)),
    messages.Run(9, (messages.Compile((1,)), messages.AllReduce((5,), "max"))),
    messages.Reply(([1.5, None], (3, 4)), None),
    messages.Reply((), Failure(1, ValueError, "ValueError: x", "Traceback ..."), aborted=True),
]

CLASSES = [
    kind
    for _, kind in inspect.getmembers(messages, inspect.isclass)
    if kind.__module__ == messages.__name__ and kind is not messages.Results  # which has no equal
]


def fields(message):
    return message if isinstance(message, tuple) else dataclasses.astuple(message)


def test_there_is_an_example_of_every_message():
    assert CLASSES
    assert {type(example) for example in EXAMPLES} == set(CLASSES)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_travels(message):
    arrived = pickle.loads(pickle.dumps(message, protocol=5))
    assert arrived == message
    # Tuples of different messages are equal when their fields are: the class must arrive as well.
    assert type(arrived) is type(message)
    assert [type(value) for value in fields(arrived)] == [type(value) for value in fields(message)]


def test_steps_of_a_run_keep_their_class():
    steps = (
        messages.Broadcast((1,)),
        messages.AllGather((1,)),
        messages.Shapes((1,)),
        messages.Compile((1,)),
    )
    arrived = pickle.loads(pickle.dumps(messages.Run(1, steps), protocol=5))
    assert [type(step) for step in arrived.steps] == [type(step) for step in steps]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_messages_are_plain_values(kind):
    assert kind.__doc__
    methods = [name for name, value in vars(kind).items() if inspect.isfunction(value) and name[0] != "_"]
    assert set(methods) <= {"count", "index"}


def test_a_reply_is_of_a_run_that_went_on_unless_it_says_otherwise():
    assert messages.Reply((), None).aborted is False
