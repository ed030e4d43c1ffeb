"""Layers made of layers: one after another, and a branch beside a shortcut.

    Sequential(stem=Conv(...), norm=BatchNorm(...))      params "stem.W", "norm.gamma", ...
    Residual(branch, shortcut)                           params "branch.0.W", ..., "shortcut.0.W", ...
    Joined(branch, shortcut)                             the same, with the channels of both

A layer may stand in several places: it has one set of weights, counted once and named after the first place.
In training, what has updates may not, as its state would get two new values in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytensor.tensor as pt

from synk.extensions.layers.base import Layer, Pair, as_layer, path
from synk.values.checks import may_be_equal


class Network(Layer):
    """A layer made of others, its ``layers`` by name and in order."""

    def __init__(self, layers: dict[str, Layer]) -> None:
        for name, layer in layers.items():
            if not name or "." in name:
                raise ValueError(f"{name!r} does not name a layer ({layer!r}): pass a name without dots")
        self.layers = layers
        super().__init__(
            params=_by_path(layers, lambda layer: layer.params),
            state=_by_path(layers, lambda layer: layer.state),
        )
        self.rename("")

    def rename(self, name: str) -> None:
        """Take a name, and name all layers and their variables by their paths from here.

        Parameters
        ----------
        name : str
        """
        self.name = name
        # The first of the places that a layer has is the last to name it.
        for key, layer in reversed(self.layers.items()):
            layer.rename(path(name, key))
        self._name_variables()

    def describe(self) -> str:
        """List the names of the layers."""
        return ", ".join(self.layers)


class Sequential(Network):
    """Layers one after another.

    Parameters
    ----------
    *layers : Layer, or function of one tensor
        Named by their places: ``"0"``, ``"1"``, ...
    **named : Layer, or function of one tensor
        After the others, by names of one's own.

    Raises
    ------
    TypeError
        Something is no layer.
    ValueError
        There are none, or a name has a dot in it.

    See Also
    --------
    synk.extensions.layers.Residual : a branch beside a shortcut.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> model = layers.Sequential(
    ...     hidden=layers.Dense(8, 16, rng=rng), relu=layers.ReLU(), head=layers.Dense(16, 3, rng=rng)
    ... )
    >>> list(model.params)
    ['hidden.W', 'hidden.b', 'head.W', 'head.b']
    >>> x = pt.fmatrix("x")
    >>> synk.function([x], model(x))(np.ones((2, 8), "float32")).shape
    (2, 3)
    """

    def __init__(self, *layers: Any, **named: Any) -> None:
        named = {**{str(place): layer for place, layer in enumerate(layers)}, **named}
        if not named:
            raise ValueError("a Sequential of no layers has nothing to do; pass some, such as Flatten()")
        super().__init__({name: as_layer(layer) for name, layer in named.items()})

    def __call__(self, x: Any) -> Any:
        """Return the output of the last layer, as for testing.

        Parameters
        ----------
        x : PyTensor tensor
        """
        for layer in self.layers.values():
            x = layer(x)
        return x

    def training(self, x: Any) -> tuple[Any, list[Pair]]:
        """Return the output of the last layer as for training, and the updates of all layers.

        Parameters
        ----------
        x : PyTensor tensor

        Raises
        ------
        ValueError
            A layer with updates stands in two places.
        """
        updates: list[Pair] = []
        for layer in self.layers.values():
            x, more = layer.training(x)
            updates += more
        return x, _each_once(updates)


class Ways(Network):
    """Two ways from one input, which come together: a branch, and a shortcut or the input itself."""

    def __init__(self, branch: Any, shortcut: Any = None) -> None:
        parts = {"branch": branch} if shortcut is None else {"branch": branch, "shortcut": shortcut}
        super().__init__({name: as_layer(layer) for name, layer in parts.items()})

    def __call__(self, x: Any) -> Any:
        """Return the output as for testing.

        Parameters
        ----------
        x : PyTensor tensor

        Raises
        ------
        ValueError
            Branch and shortcut have shapes that do not fit each other, as far as they are known.
        """
        shortcut = self.layers.get("shortcut")
        return self.joined(self.layers["branch"](x), x if shortcut is None else shortcut(x))

    def training(self, x: Any) -> tuple[Any, list[Pair]]:
        """Return the output as for training, and the updates of both ways.

        Parameters and errors are those of the call, and of `Sequential.training`.
        """
        branch, updates = self.layers["branch"].training(x)
        shortcut = self.layers.get("shortcut")
        beside, more = (x, []) if shortcut is None else shortcut.training(x)
        return self.joined(branch, beside), _each_once([*updates, *more])

    def joined(self, branch: Any, shortcut: Any) -> Any:
        """Return one tensor of what has come both ways."""
        raise NotImplementedError


class Residual(Ways):
    """A branch beside a shortcut: ``activation(branch(x) + shortcut(x))``.

    Parameters
    ----------
    branch : Layer, or function of one tensor
    shortcut : Layer, or function of one tensor, optional
        By default the input itself. Where the branch changes its shape, a convolution of size 1 and of the
        same stride.
    activation : function of one tensor, optional
        After the sum: `synk.ops.relu` in the networks of 2015; by default there is none, as in those of
        2016, which rectify in the branch.

    Raises
    ------
    TypeError
        Something is no layer.

    See Also
    --------
    synk.extensions.layers.Sequential : puts layers one after another.

    References
    ----------
    He, Zhang, Ren and Sun (2015), arXiv:1512.03385; without an activation: the same (2016), arXiv:1603.05027.

    Examples
    --------
    >>> layer = layers.Residual(layers.Dense(3, 3, rng=np.random.default_rng(0)), activation=ops.relu)
    >>> x = pt.fmatrix("x")
    >>> f = synk.function([x], layer(x))
    >>> f(np.ones((2, 3), "float32")).shape
    (2, 3)
    """

    def __init__(
        self, branch: Any, shortcut: Any = None, *, activation: Callable[[Any], Any] | None = None
    ) -> None:
        self.activation = activation
        super().__init__(branch, shortcut)

    def joined(self, branch: Any, shortcut: Any) -> Any:
        """Return the activation of the sum."""
        shapes = branch.type.shape, shortcut.type.shape
        if not may_be_equal(*shapes):
            raise ValueError(
                f"{self!r}: the branch gives shape {shapes[0]} and the shortcut {shapes[1]}; pass a shortcut "
                "such as Conv(n_in, n_out, 1, stride=...) that gives the branch's"
            )
        total = branch + shortcut
        return total if self.activation is None else self.activation(total)


class Joined(Ways):
    """A branch that joins its shortcut later: the channels of both, those of the shortcut first.

    So are the levels of a U-Net made: ``Joined(Sequential(MaxPool(2), ..., ConvTranspose(...)))``.

    Parameters
    ----------
    branch : Layer, or function of one tensor
        It keeps all lengths but that along `axis`.
    shortcut : Layer, or function of one tensor, optional
        By default the input itself.
    axis : int
        Along which they are joined.

    Raises
    ------
    TypeError
        Something is no layer.

    See Also
    --------
    synk.extensions.layers.Residual : adds the branch.

    References
    ----------
    Ronneberger, Fischer and Brox (2015), "U-Net", arXiv:1505.04597.

    Examples
    --------
    >>> layer = layers.Joined(layers.Dense(3, 2, rng=np.random.default_rng(0)))
    >>> x = pt.fmatrix("x")
    >>> synk.function([x], layer(x))(np.ones((4, 3), "float32")).shape
    (4, 5)
    """

    def __init__(self, branch: Any, shortcut: Any = None, *, axis: int = 1) -> None:
        self.axis = axis
        super().__init__(branch, shortcut)

    def joined(self, branch: Any, shortcut: Any) -> Any:
        """Return both along the axis."""
        shapes = [[*way.type.shape] for way in (shortcut, branch)]
        for shape in shapes:
            if not 0 <= self.axis < len(shape):
                raise ValueError(f"{self!r} joins along axis {self.axis} of shape {tuple(shape)}; pass axis=")
            shape[self.axis] = None
        if not may_be_equal(*map(tuple, shapes)):
            raise ValueError(
                f"{self!r}: the branch gives shape {branch.type.shape} and the shortcut "
                f"{shortcut.type.shape}, which differ beside axis {self.axis}; pass sizes that its pooling "
                "divides, or a shortcut that gives the branch's"
            )
        return pt.join(self.axis, shortcut, branch)


def _by_path(layers: dict[str, Layer], of: Callable[[Layer], dict[str, Any]]) -> dict[str, Any]:
    """Collect variables of layers by their paths, each once, under the first."""
    found: dict[Any, str] = {}
    for name, layer in layers.items():
        for key, variable in of(layer).items():
            found.setdefault(variable, path(name, key))
    return {where: variable for variable, where in found.items()}


def _each_once(updates: Iterable[Pair]) -> list[Pair]:
    """Return updates as a list; raise where a variable has two."""
    updates = list(updates)
    seen = set()
    for variable, _ in updates:
        if variable in seen:
            raise ValueError(
                f"{variable} is updated twice: its layer stands in two places, and each would give it a "
                "new value; make a layer of its own for each place"
            )
        seen.add(variable)
    return updates
