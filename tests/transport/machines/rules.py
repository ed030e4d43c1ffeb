"""Ten rules on several machines have the same bits whether the update may be divided or not.

python rules.py '{"hosts": "h1:1,h2:2", "interface": "10.77.0.0/24"}'

See test_same_numbers.py.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import synk
from support.cases.divided import RULES, Trained, assert_equal
from synk.extensions import updates


def main(options):
    n_ranks = synk.fork(**json.loads(options))
    for name, settings in RULES.items():
        runs = [Trained(getattr(updates, name), shard, **settings) for shard in (None, "auto")]
        for keywords in ({}, {"batch": 1}, {"num_slices": 3}):
            losses = [trained.train(2, **keywords) for trained in runs]
            assert losses[0] == losses[1], (name, losses)
        assert_equal(*runs, n_ranks)
        said = "\n".join(runs[1].step.explanation())
        assert "every rank updates all variables: ranks on several machines share no memory" in said, said
        print(name)
    synk.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
