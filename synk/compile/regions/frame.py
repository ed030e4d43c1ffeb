"""The C around a region's lines: its function, its file, and the prelude, a file of what regions call.

source_file -> a library of regions;  prelude_file -> the library of the functions that all regions call
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template

NAME = "REGION"  # stands for the name that a region gets when it is compiled
HEAD = f"#define HEAD {object.__basicsize__}"
PRELUDE = ("long_runs.c", "arrays.c", "walks.c", "products.c")
ROOM = 16 << 10  # bytes of the C frame, which a region's own small arrays are allocated in

FUNCTION = Template("""\
$once void *$name(void *self, void *const *given, long n_given)
{
    Array *r[$n_results] = {0};
    void *m[$n_places] = {0}, *returned;
    char frame[$room] __attribute__((aligned(64))), *room = frame;
    long *const worked = worked_here();
    if (n_given < $n_inputs)
        goto give_up;
$lines

    returned = packed($n_results, r);
    if (!returned)
        goto give_up;
    give_all(frame, frame + sizeof frame, $n_places, m);
    return returned;
give_up:
    give_all(frame, frame + sizeof frame, $n_places, m);
    return nothing($n_results, r);
interrupted: __attribute__((unused));
    give_all(frame, frame + sizeof frame, $n_places, m);
    let_go($n_results, r);
    return 0;
}
""")


def function_text(lines: Sequence[str], n_inputs: int, n_results: int, n_places: int, loops: bool) -> str:
    """Return the C function of a region.

    Parameters
    ----------
    lines : sequence of str
        The lines that compute results ``r`` from the arguments ``given``, in places ``m`` of memory.
    n_inputs, n_results, n_places : int
        Numbers of arguments, results and places of memory.
    loops : bool
        Whether some of the lines run more than once in a call.
    """
    return FUNCTION.substitute(
        name=NAME,
        once="" if loops else "ONCE",
        n_inputs=n_inputs,
        n_results=n_results,
        n_places=max(n_places, 1),
        room=ROOM,
        lines="\n".join(lines),
    )


def source_file(regions: Mapping[str, str], declarations: Iterable[str]) -> str:
    """Return a C file of regions, given by name; see `Text.declarations`."""
    texts = [f"{text.replace(NAME, name)}\nMETHOD({name});\n" for name, text in regions.items()]
    return "\n".join([HEAD, _read("prelude.h"), *declarations, *texts])


def prelude_file() -> str:
    """Return the C file of the functions that all regions call."""
    return "\n".join([HEAD, "#define PRELUDE", *map(_read, ("prelude.h", *PRELUDE))])


def _read(name: str) -> str:
    return files("synk.compile.regions").joinpath("prelude", name).read_text()
