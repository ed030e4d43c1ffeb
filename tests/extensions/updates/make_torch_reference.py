"""Write torch_reference.json: the trajectories of torch's optimizers on a small regression.

    pip install torch==2.13.0 && python make_torch_reference.py

Where torch adds epsilon elsewhere than we do, both are given none.
"""

import json
from pathlib import Path

import torch

N_STEPS = 6
STEP = {"learning_rate": 0.05}
NO_EPSILON = {"epsilon": 0.0}
SMALL_EPSILON = {"epsilon": 1e-3}  # large enough to be seen

# rule of ours, our options, torch's optimizer, its options
CASES = [
    ("sgd", STEP, torch.optim.SGD, {}),
    ("momentum", {**STEP, "momentum": 0.8}, torch.optim.SGD, {"momentum": 0.8}),
    ("nesterov_momentum", {**STEP, "momentum": 0.8}, torch.optim.SGD, {"momentum": 0.8, "nesterov": True}),
    ("adagrad", {**STEP, **NO_EPSILON}, torch.optim.Adagrad, {"eps": 0.0}),
    ("rmsprop", {**STEP, **NO_EPSILON, "rho": 0.8}, torch.optim.RMSprop, {"alpha": 0.8, "eps": 0.0}),
    ("adadelta", {**STEP, **SMALL_EPSILON, "rho": 0.8}, torch.optim.Adadelta, {"rho": 0.8, "eps": 1e-3}),
    ("adam", {**STEP, **SMALL_EPSILON}, torch.optim.Adam, {"eps": 1e-3}),
    (
        "amsgrad",
        {**STEP, **SMALL_EPSILON, "beta2": 0.5},
        torch.optim.Adam,
        {"eps": 1e-3, "betas": (0.9, 0.5), "amsgrad": True},
    ),
    (
        "adamw",
        {**STEP, **SMALL_EPSILON, "weight_decay": 0.1},
        torch.optim.AdamW,
        {"eps": 1e-3, "weight_decay": 0.1},
    ),
    ("adamax", {**STEP, **NO_EPSILON}, torch.optim.Adamax, {"eps": 0.0}),
]


def problem():
    """Return inputs, targets and initial parameters."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"x": (7, 3), "y": (7, 2), "W": (3, 2), "b": (2,)}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()
    }


def trajectory(optimizer, options):
    """Return the parameters after each step."""
    tensors = problem()
    W, b = (torch.nn.Parameter(tensors[name]) for name in ("W", "b"))
    minimizer = optimizer([W, b], lr=STEP["learning_rate"], **options)
    steps = []
    for _ in range(N_STEPS):
        minimizer.zero_grad()
        ((tensors["x"] @ W + b - tensors["y"]) ** 2).mean().backward()
        minimizer.step()
        steps.append({"W": W.tolist(), "b": b.tolist()})
    return steps


if __name__ == "__main__":
    reference = {
        "torch": torch.__version__.split("+")[0],
        "problem": {name: tensor.tolist() for name, tensor in problem().items()},
        "rules": {
            rule: {"options": ours, "steps": trajectory(optimizer, options)}
            for rule, ours, optimizer, options in CASES
        },
    }
    path = Path(__file__).with_name("torch_reference.json")
    path.write_text(json.dumps(reference) + "\n")
